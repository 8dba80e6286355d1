package config

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// Convert makes a versioned tree of a flat one, with the same keys. Readers of
// layout auto go over to it by themselves. Then the flat keys are deleted, unless
// keep says that programs that know only the flat layout still read them: those
// see no change after that. Of cfg, the path and what describes the version are
// used, and Check.
func Convert(ctx context.Context, s *session.Session, cfg PublishConfig, keep bool) (Result, error) {
	cfg.Keys = nil
	if err := cfg.fill(); err != nil {
		return Result{}, err
	}
	var res Result
	err := withLock(ctx, s, cfg.Path, cfg.who(), cfg.Logger, func(ctx context.Context, guard session.Op) error {
		p := &publisher{s: s, cfg: &cfg, guard: guard}
		var err error
		res, err = p.convert(ctx, keep)
		return err
	})
	if err != nil {
		return Result{}, fmt.Errorf("convert: %w", err)
	}
	return res, nil
}

func (p *publisher) convert(ctx context.Context, keep bool) (Result, error) {
	root := p.cfg.Path
	st, err := readState(ctx, p.s, root)
	switch {
	case err != nil:
		return Result{}, err
	case !st.exists:
		return Result{}, fmt.Errorf("config %s: %w", root, ErrNotReady)
	case st.layout == LayoutVersioned:
		return Result{}, fmt.Errorf("config %s is versioned already: %w", root, ErrUnchanged)
	case p.cfg.Check != nil && *p.cfg.Check != st.generation():
		return Result{}, &ConflictError{Path: root, Want: *p.cfg.Check, Have: st.generation()}
	}
	if err = checkFreeze(ctx, p.s, root); err != nil {
		return Result{}, err
	}
	keys := map[string][]byte{}
	for key, k := range st.keys().All() {
		keys[key] = k.Value
	}
	p.cfg.Keys = keys
	m, objects := buildVersion(keys)
	if err = p.writeObjects(ctx, objects); err != nil {
		return Result{}, err
	}
	res := Result{Layout: LayoutVersioned, Digest: m.sum.String(), Count: m.Count, Size: m.Size, Changes: []Change{}}
	if res, err = p.finish(ctx, st, m, res, true); err != nil || keep {
		return res, err
	}
	var paths []string
	for rel := range st.nodes {
		if rel != "" {
			paths = append(paths, root+"/"+rel)
		}
	}
	deepestFirst(paths)
	return res, deleteAll(ctx, p.s, []session.Op{p.guard}, paths)
}
