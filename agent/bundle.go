package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// bundle is one bundle of the settings. The loop owns it; while an apply is
// in flight, that apply alone touches what is marked so.
type bundle struct {
	cfg       BundleConfig
	templates []*bundleTemplate
	sources   []view.Source            // what the templates and for_each name
	named     map[view.Source][]string // the keys, of configs of which only those are read
	err       error                    // it cannot be parsed

	settle   settle
	inFlight bool
	drifting bool      // what is in flight only looks whether files were changed
	applied  bool      // at least one apply was tried
	seen     view.View // view of the newest apply
	force    bool      // compare every file with the disk
	failures int
	retryAt  time.Time // zero: nothing to try again
	report   bundleReport
	former   *bundle // of the settings before, until this one is applied first

	work bundleWork // owned by the apply in flight
}

// bundleTemplate is one template of a bundle.
type bundleTemplate struct {
	cfg  TemplateConfig
	tmpl *template.Template
}

// bundleReport is what the loop tells about a bundle.
type bundleReport struct {
	State      string // waiting, ok, failed
	Stage      string // where it failed: render, stage, check, swap, reload
	Err        error
	LastApply  time.Time
	LastChange time.Time
	Took       time.Duration
	Files      []string
	Version    string
}

// newBundle parses the templates of a bundle. One that cannot be parsed is
// kept with its error: its files stay, and the others work.
func newBundle(cfg BundleConfig, declared []view.Source, syntax map[string]func([]byte) error) *bundle {
	b := &bundle{cfg: cfg, settle: settle{min: cfg.WaitMin, max: cfg.WaitMax}, report: bundleReport{State: "waiting"}}
	var errs []error
	for _, tc := range cfg.Templates {
		t, err := parseTemplate(tc, syntax)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b.templates = append(b.templates, &bundleTemplate{cfg: tc, tmpl: t})
		for _, s := range t.Uses().Sources(declared) {
			if !slices.Contains(b.sources, s) {
				b.sources = append(b.sources, s)
			}
		}
		if err := t.Uses().Undeclared(declared); err != nil {
			errs = append(errs, err)
		}
	}
	if cfg.ForEach != nil && !slices.Contains(b.sources, *cfg.ForEach) {
		b.sources = append(b.sources, *cfg.ForEach)
	}
	b.err = errors.Join(errs...)
	b.findNamed()
	return b
}

// parseTemplate reads and parses one template.
func parseTemplate(tc TemplateConfig, syntax map[string]func([]byte) error) (*template.Template, error) {
	text, dir, name := tc.Contents, "", tc.Name
	if tc.Source != "" {
		data, err := os.ReadFile(tc.Source)
		if err != nil {
			return nil, fmt.Errorf("read template: %w", err)
		}
		text, dir, name = string(data), filepath.Dir(tc.Source), filepath.Base(tc.Source)
	} else if file, _, ok := strings.Cut(tc.Position, ":"); ok {
		dir = filepath.Dir(file)
	}
	return template.Parse(template.Config{
		Name: name, Source: text, Dir: dir, Allow: tc.Allow, ErrorOnMissingKey: !tc.MissingKeyOK,
		MaxOutput: tc.MaxSize, Timeout: tc.Timeout, Syntax: tc.Syntax, Syntaxes: syntax,
	})
}

// concerns reports whether the difference between two views can change what
// the bundle renders.
func (b *bundle) concerns(old, next view.View) bool {
	if b.cfg.ForEach != nil {
		a, c := old.Get(*b.cfg.ForEach), next.Get(*b.cfg.ForEach)
		if a != c && (a == nil || c == nil || !a.Equal(c)) {
			return true
		}
	}
	for _, t := range b.templates {
		if t.tmpl.Stale(&old, &next) {
			return true
		}
	}
	return false
}

// reloadKey names the reload queue of the bundle: the distinct argument list,
// or its text where the list depends on the element. Empty: no reload.
func (b *bundle) reloadKey() string {
	r := b.cfg.Reload
	if r == nil || !r.Command.Set() {
		return ""
	}
	if b.cfg.ForEach == nil {
		if args, err := r.Command.Args(b.vars(nil)); err == nil {
			return strings.Join(args, "\x00")
		}
	}
	return "text\x00" + r.Command.Text
}

// atomic reports whether one rename is all that a change of the bundle does:
// then a process that is killed leaves the old or the new file and owes
// nothing, and no journal is needed.
func (b *bundle) atomic() bool {
	c := b.cfg
	return len(c.Templates) == 1 && c.ForEach == nil && b.reloadKey() == "" && (c.Check == nil || c.Check.At != atSwapped) &&
		!c.Templates[0].InPlace
}

// vars is what a command of the bundle may refer to when nothing is staged.
func (b *bundle) vars(each *Each) Vars {
	v := Vars{Each: each}
	if len(b.cfg.Templates) > 0 && b.cfg.Templates[0].Destination != nil {
		if d, err := b.cfg.Templates[0].Destination(each); err == nil {
			v.Destination, v.Staged = d, d
		}
	}
	return v
}
