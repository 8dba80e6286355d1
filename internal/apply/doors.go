package apply

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Output is one file as a bundle renders it now.
type Output struct {
	Destination string
	Config      *FileConfig
	Data        []byte
}

// Try renders, stages and checks a bundle for a vote, and leaves no trace. The
// bundle must be a fresh one. A group that is empty keeps its files: that is
// no failure.
func (e *Engine) Try(ctx context.Context, b *Bundle, v view.View) error {
	t := e.fresh(b, v)
	if err := t.render(ctx); err != nil {
		if errors.Is(err, template.ErrEmptyGroup) {
			return nil
		}
		return err
	}
	t.tx = files.Begin(files.TxConfig{Bundle: files.Name("vote-" + b.Config.Name), StateDir: e.journalDir(), FS: e.FS})
	err := t.stage()
	if err == nil && t.tx.Changed() {
		err = t.check(ctx, false)
	}
	return plain(errors.Join(err, t.tx.Discard()))
}

// Preview renders a bundle, and touches nothing. The bundle must be a fresh
// one. It also returns the files that would be removed.
func (e *Engine) Preview(ctx context.Context, b *Bundle, v view.View) ([]Output, []string, error) {
	quiet := *e
	quiet.Observer = nobody{}
	t := quiet.fresh(b, v)
	if err := t.render(ctx); err != nil {
		return nil, nil, err
	}
	list := make([]Output, 0, len(t.outputs))
	for _, o := range t.outputs {
		list = append(list, Output{Destination: o.dest, Config: &o.tmpl.cfg, Data: o.data})
	}
	return list, t.gone, nil
}

// fresh is an apply of a bundle that was not applied before.
func (e *Engine) fresh(b *Bundle, v view.View) *applying {
	return &applying{Engine: e, name: b.Config.Name, job: Job{Bundle: b, View: v, Old: v, First: true, Force: true}}
}
