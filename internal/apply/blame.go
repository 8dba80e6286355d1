package apply

import (
	"context"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Blamed is one file with where each byte of it came from.
type Blamed struct {
	*template.Blame

	Destination string
	Config      *FileConfig
	Template    string // path of the template file, or its name
}

// Blame renders the files of a bundle that match, says where each byte of them
// comes from, and touches nothing. An element of for_each that makes another
// file is not executed.
func (b *parsed) Blame(ctx context.Context, v view.View, match func(destination string, cfg *FileConfig) bool, missing string) ([]Blamed, error) {
	job := Job{Bundle: b.fresh(), View: v}
	elements, err := job.elements()
	if err != nil {
		return nil, err
	}
	var list []Blamed
	for _, f := range b.templates {
		for _, e := range elements {
			dest, err := f.cfg.Path(e)
			if err != nil {
				return nil, err
			}
			if !match(dest, &f.cfg) {
				continue
			}
			o := template.BlameOptions{Each: e, Missing: missing}
			if b.Config.ForEach != nil {
				o.ForEach = *b.Config.ForEach
			}
			blame, err := f.tmpl.Blame(ctx, &v, o)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", dest, err)
			}
			list = append(list, Blamed{blame, dest, &f.cfg, f.tmpl.Name()})
		}
	}
	return list, nil
}

// Makes reports whether the bundle may make a file that a user named, before the
// elements of its for_each are known.
func (b *parsed) Makes(name, path string) bool {
	match := b.Match(name, path)
	for _, f := range b.templates {
		dest := ""
		if b.Config.ForEach == nil {
			dest, _ = f.cfg.Path(nil)
		}
		if match(dest, &f.cfg) {
			return true
		}
	}
	return false
}

// Writes reports whether the path is the destination of a template of the bundle, or
// of an element of its for_each, as far as the record says which files were written.
func (e *Engine) Writes(b *Bundle, path string) bool {
	if b.Config.ForEach != nil {
		_, ok := e.loadWritten(e.StateDir, b.Config.Name)[path]
		return ok
	}
	return slices.ContainsFunc(b.templates, func(f *file) bool {
		dest, err := f.cfg.Path(nil)
		return err == nil && dest == path
	})
}

// Match returns what chooses the files of a bundle by a name that a user gave: the
// name of the bundle or of one of its templates, or the path of the file or of the
// template. path is the name in the working directory of the user, as an absolute path.
func (b *parsed) Match(name, path string) func(destination string, cfg *FileConfig) bool {
	return func(destination string, cfg *FileConfig) bool {
		return destination == path || cfg.Source == path || name == b.Config.Name || name == cfg.Name || name == b.Config.Name+"/"+cfg.Name
	}
}
