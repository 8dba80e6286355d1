package tmpltest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/template"
)

// Cover collects which lines and branches of templates the tests render. The
// zero value is ready. Templates that stand in a test file are not counted.
type Cover struct {
	templates map[string]*template.Coverage // by path, or by name and place in the settings
}

// TemplateCover is what the tests render of one template.
type TemplateCover struct {
	Template string `json:"template"` // path, or name and place in the settings
	template.Covered
}

// Report lists all templates that were tested, and those of the settings that no
// test names.
func (c *Cover) Report() []TemplateCover {
	list := []TemplateCover{}
	for _, name := range slices.Sorted(maps.Keys(c.templates)) {
		list = append(list, TemplateCover{name, c.templates[name].Covered()})
	}
	return list
}

// of is the coverage of one template; nil where nothing is collected.
func (c *Cover) of(f *apply.FileConfig) *template.Coverage {
	if c == nil || f.Source == "" && f.Position == "" {
		return nil
	}
	name := f.Name + " of " + shown(f.Position)
	if f.Source != "" {
		name = shown(f.Source)
	}
	if c.templates == nil {
		c.templates = map[string]*template.Coverage{}
	}
	if c.templates[name] == nil {
		c.templates[name] = &template.Coverage{}
	}
	return c.templates[name]
}

func (c *Cover) settings(config *agent.Config) {
	if c == nil {
		return
	}
	for _, b := range config.Bundles {
		for i := range b.Templates {
			f := &b.Templates[i]
			text, err := f.Text()
			if err != nil {
				continue // the tests of it fail
			}
			cfg := f.Template(text)
			cfg.Coverage = c.of(f)
			_, _ = template.Parse(cfg) // as above
		}
	}
}

// shown is a path below the working directory as a person writes it.
func shown(path string) string {
	wd, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}
