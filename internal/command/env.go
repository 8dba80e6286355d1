package command

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// Env is what a command gets beside PATH, HOME and LANG.
type Env struct {
	Set  map[string]string `json:"-"` // variable -> value
	Pass []string          // names and globs of variables of the agent's own environment
}

// Over returns the variables of e with those of base below them.
func (e Env) Over(base Env) Env {
	set := maps.Clone(base.Set)
	if set == nil {
		set = e.Set
	} else {
		maps.Copy(set, e.Set)
	}
	return Env{set, slices.Concat(base.Pass, e.Pass)}
}

// List resolves the variables, as "NAME=value". A value that is set wins over one
// that is passed on.
func (e Env) List() []string {
	var list []string
	if len(e.Pass) > 0 {
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); e.passes(name) {
				list = append(list, v)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Set)) {
		list = append(list, name+"="+e.Set[name])
	}
	return list
}

// own are variables by which the service manager talks to the agent: a glob does
// not pass them on, only their name does.
var own = []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "CREDENTIALS_DIRECTORY"}

// passes reports whether the variable is passed on.
func (e Env) passes(name string) bool {
	if _, set := e.Set[name]; set {
		return false
	}
	return slices.ContainsFunc(e.Pass, func(glob string) bool {
		ok, err := path.Match(glob, name)
		return glob == name || err == nil && ok && !slices.Contains(own, name)
	})
}
