package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Convert turns a flat tree into a versioned one with the same keys. Readers with
// layout auto switch by themselves. Then Convert deletes the flat keys. With keep
// it leaves them for programs that know only the flat layout; those programs see no
// later changes. If a tool changes the tree meanwhile without the publishers' lock,
// Convert returns an error that matches [ErrConflict]. Then it has converted
// nothing, or, if the change came too late for that, the versioned tree lacks the
// change and the flat key stays. Convert uses the path, the description of the
// version and Check from cfg.
func Convert(ctx context.Context, s *session.Session, cfg PublishConfig, keep bool) (Result, error) {
	cfg.Keys = nil
	if err := mustHaveConfig(ctx, s, cfg.Path); err != nil {
		return Result{}, err
	}
	return alone(ctx, s, cfg, "convert", func(ctx context.Context, p *publisher) (Result, error) { return p.convert(ctx, keep) })
}

func (p *publisher) convert(ctx context.Context, keep bool) (Result, error) {
	root := p.cfg.Path
	if err := p.mayPublish(ctx, true); err != nil {
		return Result{}, err
	}
	st, err := trees.ReadState(ctx, p.s, root)
	switch {
	case err != nil:
		return Result{}, err
	case !st.Exists:
		return Result{}, fmt.Errorf("config %s: %w", root, config.ErrNotReady)
	case st.Layout == config.LayoutVersioned:
		return Result{}, fmt.Errorf("config %s is versioned already: %w", root, ErrUnchanged)
	case p.cfg.Check != nil && *p.cfg.Check != st.Generation():
		return Result{}, &ConflictError{Path: root, Want: *p.cfg.Check, Have: st.Generation()}
	}
	keys := map[string][]byte{}
	for key, k := range st.Keys().All() {
		keys[key] = k.Value
	}
	p.cfg.Keys = keys
	m, objects := buildVersion(keys)
	if err = p.writeObjects(ctx, objects); err != nil {
		return Result{}, err
	}
	res := Result{Layout: config.LayoutVersioned, Digest: m.Sum.String(), Count: m.Count, Size: m.Size, Changes: []config.Change{}}
	p.steady = st
	if res, err = p.finish(ctx, st, m, res, true); err != nil {
		return Result{}, err
	}
	return res, p.afterFlip(ctx, st, keep)
}

// afterFlip deletes the flat keys, unless keep is set. It returns an error with the
// keys that another tool created, changed or deleted after the last read before the
// flip, because the version lacks those changes. A session sees its own flip and
// all earlier writes, so this read finds them.
func (p *publisher) afterFlip(ctx context.Context, st *trees.State, keep bool) error {
	nodes, _, err := trees.Walk(ctx, p.s, p.cfg.Path)
	if err != nil {
		return fmt.Errorf("config %s is versioned now; look for changes by another tool meanwhile: %w", p.cfg.Path, err)
	}
	missed := st.ChangedRows(&trees.State{Nodes: nodes})
	if !keep {
		kept, err := p.deleteRows(ctx, st)
		if err != nil {
			return fmt.Errorf("config %s is versioned now; %w", p.cfg.Path, err)
		}
		missed = append(missed, kept...)
	}
	if len(missed) == 0 {
		return nil
	}
	slices.Sort(missed)
	missed = slices.Compact(missed)
	return fmt.Errorf("config %s is versioned now, without what another tool did meanwhile to %d of its flat keys, such as %q: publish that, too: %w",
		p.cfg.Path, len(missed), missed[len(missed)-1], ErrConflict)
}

// maxChecks bounds the checks in the multi that flips.
const maxChecks = 4 * multiOps

// checks returns operations that make the flip fail when a flat key has changed
// since it was read. They cannot detect new keys, and there may be too many for one
// multi. So the tree is read once more before the flip, and once after it.
func (p *publisher) checks(ctx context.Context) ([]session.Op, error) {
	if p.steady == nil {
		return nil, nil
	}
	root := p.cfg.Path
	nodes, _, err := trees.Walk(ctx, p.s, root)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", root, err)
	}
	if len(p.steady.ChangedRows(&trees.State{Nodes: nodes})) > 0 {
		return nil, fmt.Errorf("config %s: another tool changed a key at the same time: %w", root, ErrConflict)
	}
	var ops []session.Op
	for rel, row := range nodes {
		if rel != "" && len(ops) < maxChecks {
			ops = append(ops, session.CheckOp(root+"/"+rel, row.Stat.Version))
		}
	}
	return ops, nil
}

// deleteRows deletes the znodes of a flat tree and their empty parents. A znode
// that has changed since it was read stays; deleteRows returns those znodes.
func (p *publisher) deleteRows(ctx context.Context, st *trees.State) ([]string, error) {
	var rels, kept []string
	for rel := range st.Nodes {
		if rel != "" {
			rels = append(rels, rel)
		}
	}
	deepestFirst(rels)
	for len(rels) > 0 {
		ops := []session.Op{p.guard}
		for _, rel := range rels[:min(len(rels), multiOps)] {
			ops = append(ops, session.DeleteOp(p.cfg.Path+"/"+rel, st.Nodes[rel].Stat.Version))
		}
		_, err := p.s.Multi(ctx, ops...)
		var multi *session.MultiError
		switch {
		case err == nil:
			rels = rels[len(ops)-1:]
		case errors.Is(err, session.ErrUnknown): // the next attempt ignores what is already gone
			if err = p.s.Sync(ctx, p.cfg.Path); err != nil {
				return nil, fmt.Errorf("delete flat keys: %w", err)
			}
		case errors.As(err, &multi) && multi.Index > 0 && p.otherTool(err):
			if !errors.Is(err, session.ErrNoNode) {
				kept = append(kept, rels[multi.Index-1])
			}
			rels = slices.Delete(rels, multi.Index-1, multi.Index)
		default:
			return nil, fmt.Errorf("delete flat keys: %w", err)
		}
	}
	return kept, nil
}
