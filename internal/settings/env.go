package settings

import (
	"fmt"
	"path"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/command"
)

// env reads the environment of a command, over that of the agent block.
func (r *reader) env(set, pass *hcl.Expression) command.Env {
	e := command.Env{Set: r.strmap(set), Pass: r.strings(pass)}
	for _, name := range sortedKeys(e.Set) {
		err := checkVariable(name)
		if err == nil && strings.ContainsRune(e.Set[name], 0) {
			err = fmt.Errorf("the value of %s has a NUL byte", name)
		}
		if err != nil {
			r.s.errorAt(r.where(set), "Invalid environment variable", "%s", sentence(err.Error()))
		}
	}
	for _, glob := range e.Pass {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || strings.ContainsAny(glob, "=\x00") {
			r.s.errorAt(r.where(pass), "Invalid environment variable", "%q is not the name of an environment variable, nor a glob such as \"APP_*\".", glob)
		}
	}
	return e.Over(r.s.Config.Env)
}

// checkVariable checks the name of an environment variable.
func checkVariable(name string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return fmt.Errorf("%q is not the name of an environment variable", name)
	case strings.HasPrefix(name, "ZKAGENT_"):
		return fmt.Errorf("%s is one of the variables by which the agent tells a command why it runs: take another name", name)
	}
	return nil
}
