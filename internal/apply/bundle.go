package apply

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Bundle is one parsed bundle of the settings, with what its applies remember
// from one to the next. Only [Engine.Run] touches that: everything else may be called at
// the same time.
type Bundle struct {
	*parsed
	memory
}

// parsed is a bundle of the settings. It does not change.
type parsed struct {
	Config  Config
	Sources []view.Source // what the templates and for_each name
	Err     error         // it cannot be parsed

	templates []*file
	named     map[view.Source][]string // the keys, of configs of which only those are read
}

// memory is what the applies of a bundle remember.
type memory struct {
	outputs  map[string]*output       // by template and element
	rendered view.View                // that the outputs show
	look     bool                     // what is in place may not be the outputs: compare with the disk
	seen     bool                     // a file was in place in the life of this process
	written  map[string]files.Written // by destination; nil: not loaded yet
	taken    map[string]bool          // destinations that the template must not take
	drifting map[string]bool          // files whose condition drift is open
	contests map[string]*contest      // files that something else has changed lately
}

type file struct {
	cfg  FileConfig
	tmpl *template.Template
}

// Parse reads and parses the templates of a bundle. One that cannot be parsed
// is kept with its error: its files stay, and the others work.
func Parse(cfg Config, declared []view.Source) *Bundle {
	b := &parsed{Config: cfg}
	var errs []error
	for _, tc := range cfg.Templates {
		t, err := tc.Parse()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b.templates = append(b.templates, &file{cfg: tc, tmpl: t})
		for _, s := range t.Uses().Sources(declared) {
			if !slices.Contains(b.Sources, s) {
				b.Sources = append(b.Sources, s)
			}
		}
		if err := t.Uses().Undeclared(declared); err != nil {
			errs = append(errs, err)
		}
	}
	if cfg.ForEach != nil && !slices.Contains(b.Sources, *cfg.ForEach) {
		b.Sources = append(b.Sources, *cfg.ForEach)
	}
	b.Err = errors.Join(errs...)
	b.findNamed()
	return b.fresh()
}

// Failed is the bundle with an error that keeps it from being rendered.
func (b *parsed) Failed(err error) *Bundle {
	failed := *b
	failed.Err = err
	return failed.fresh()
}

// fresh is the bundle as if it had not been applied.
func (b *parsed) fresh() *Bundle {
	return &Bundle{b, memory{contests: map[string]*contest{}, taken: map[string]bool{}, drifting: map[string]bool{}}}
}

// Inherit takes over what the bundle of the same name of the settings before
// has written. Its applies have ended.
func (b *Bundle) Inherit(former *Bundle) {
	b.written, b.taken, b.contests, b.seen, b.drifting = former.written, former.taken, former.contests, former.seen, former.drifting
}

// Concerns reports whether the difference between two views can change what
// the bundle renders.
func (b *parsed) Concerns(old, next view.View) bool {
	if b.Config.ForEach != nil {
		a, c := old.Get(*b.Config.ForEach), next.Get(*b.Config.ForEach)
		if a != c && (a == nil || c == nil || !a.Equal(c)) {
			return true
		}
	}
	return slices.ContainsFunc(b.templates, func(t *file) bool { return t.tmpl.Stale(&old, &next) })
}

// reloadKey names the reload queue of the bundle: the environment with the argument
// list, or with its text where the list depends on the element. Empty: no reload.
func (b *parsed) reloadKey() string {
	r := b.Config.Reload
	if r == nil || !r.Command.Set() {
		return ""
	}
	env := strings.Join(append(r.Command.Env.List(), ""), "\x00")
	if b.Config.ForEach == nil {
		if args, err := r.Command.Args(b.vars(nil)); err == nil {
			return env + strings.Join(args, "\x00")
		}
	}
	return env + "text\x00" + r.Command.Text
}

// atomic reports whether one rename is all that a change of the bundle does:
// then a process that is killed leaves the old or the new file and no
// pending reload, and no journal is needed.
func (t *applying) atomic() bool {
	c := t.job.Bundle.Config
	return len(c.Templates) == 1 && c.ForEach == nil && t.job.Bundle.reloadKey() == "" && t.checkAt() != atSwapped && !c.Templates[0].InPlace
}

// vars is what a command of the bundle may refer to when nothing is staged.
func (b *parsed) vars(each *template.Each) command.Vars {
	v := command.Vars{Each: each}
	if len(b.Config.Templates) > 0 && b.Config.Templates[0].Destination != nil {
		if d, err := b.Config.Templates[0].Destination(each); err == nil {
			v.Destination, v.Staged = d, d
		}
	}
	return v
}

func (b *parsed) allVars(elements []*template.Each) []command.Vars {
	return lists.Map(elements, b.vars)
}

// files lists the destinations of what was rendered last, and says when the latest of
// these files was written, as far as that was seen.
func (b *Bundle) files() ([]string, time.Time) {
	list := make([]string, 0, len(b.outputs))
	last := int64(0)
	for _, o := range b.outputs {
		list = append(list, o.Destination)
		last = max(last, b.written[o.Destination].ModTime)
	}
	if last == 0 {
		return list, time.Time{}
	}
	return list, time.Unix(0, last)
}

// With many bundles most changes concern few of them. What a bundle reads of a
// config by the names of keys alone follows from the keys that changed. They are
// looked up once for all bundles.

// maxChanged is from how many changed keys on bundles compare for themselves.
const maxChanged = 256

// Change is what an update changes.
type Change struct {
	source view.Source
	keys   map[string]struct{} // of a config; nil: not known
}

// ChangeOf compares two states of one source; old may be nil.
func ChangeOf(old, now view.Update) Change {
	c := Change{source: now.Source()}
	a, wasTree := old.(*view.Tree)
	b, isTree := now.(*view.Tree)
	if !wasTree || !isTree {
		return c
	}
	keys := map[string]struct{}{}
	a.Keys().Diff(b.Keys(), func(path string, _, _ *view.Key) {
		if len(keys) <= maxChanged {
			keys[path] = struct{}{}
		}
	})
	if len(keys) <= maxChanged {
		c.keys = keys
	}
	return c
}

// findNamed notes the keys that the bundle reads of configs of which it reads
// nothing else.
func (b *parsed) findNamed() {
	b.named = map[view.Source][]string{}
	for _, s := range b.Sources {
		if s.Kind == view.KindConfig && (b.Config.ForEach == nil || *b.Config.ForEach != s) {
			b.named[s] = []string{}
		}
	}
	for _, t := range b.templates {
		d := t.tmpl.Uses()
		if slices.Contains(d.Dynamic, view.KindConfig) {
			clear(b.named)
		}
		for _, u := range d.Uses {
			keys, ok := b.named[u.Source]
			if !ok {
				continue
			}
			if u.Prefix || u.Version {
				delete(b.named, u.Source)
				continue
			}
			b.named[u.Source] = append(keys, u.Key)
		}
	}
	maps.DeleteFunc(b.named, func(_ view.Source, keys []string) bool { return len(keys) == 0 })
}

// Reads reports whether the bundle may read what changed.
func (b *parsed) Reads(c Change) bool {
	if !slices.Contains(b.Sources, c.source) {
		return false
	}
	named, ok := b.named[c.source]
	if !ok || c.keys == nil {
		return true
	}
	return slices.ContainsFunc(named, func(key string) bool {
		_, changed := c.keys[key]
		return changed
	})
}
