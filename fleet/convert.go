package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
// change and the flat key stays. If Convert was cut short, call it again: it deletes
// the flat keys that have the values in use. The error matches [ErrUnchanged] when the
// tree is versioned and nothing is left to do. Convert uses the path, the description of
// the version and Check from cfg.
func Convert(ctx context.Context, s *session.Session, cfg PublishConfig, keep bool) (Result, error) {
	return change(ctx, s, cfg, "convert", func(ctx context.Context, p *publisher) (Result, error) {
		st, err := p.begin(ctx, true)
		switch {
		case err != nil:
			return Result{}, err
		case !st.Exists:
			return Result{}, fmt.Errorf("config %s: %w", cfg.Path, config.ErrNotReady)
		case st.Layout == config.LayoutVersioned:
			return p.convertRest(ctx, st, keep)
		}
		keys := map[string][]byte{}
		for key, k := range st.Keys().All() {
			keys[key] = k.Value
		}
		m, objects := buildVersion(keys)
		p.steady = st
		res, err := p.put(ctx, st, m, objects, []config.Change{}, true)
		if err != nil {
			return Result{}, err
		}
		return res, p.afterFlip(ctx, st, keep)
	})
}

// convertRest deletes the flat keys that a Convert left behind when it was cut short after
// the flip. A key with another value than the version in use stays.
func (p *publisher) convertRest(ctx context.Context, st *trees.State, keep bool) (Result, error) {
	nodes, _, err := trees.Walk(ctx, p.s, p.cfg.Path)
	if err != nil {
		return Result{}, err
	}
	if len(nodes) < 2 || keep { // the root
		return Result{}, fmt.Errorf("config %s is versioned already: %w", p.cfg.Path, ErrUnchanged)
	}
	for rel, k := range trees.KeysOf(nodes).All() {
		if now, ok := st.Keys().Get(rel); !ok || !bytes.Equal(now.Value, k.Value) {
			delete(nodes, rel)
		}
	}
	r := st.Ready
	res := Result{Layout: st.Layout, Generation: r.Version, Version: r.Version, Previous: r.Previous, Digest: r.Digest, Count: st.Keys().Len(), Changes: []config.Change{}}
	return res, p.afterFlip(ctx, &trees.State{Nodes: nodes}, false)
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
		for _, rel := range missed {
			delete(st.Nodes, rel) // a key that was created again has the version of the first one
		}
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
	return fmt.Errorf("config %s is versioned now, without the changes that another tool made meanwhile to %d of its flat keys, such as %q: publish them, too: %w",
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
		return nil, p.cfg.otherTool(nil)
	}
	var ops []session.Op
	for rel, row := range nodes {
		if rel != "" && len(ops) < maxChecks {
			ops = append(ops, session.CheckOp(root+"/"+rel, row.Stat.Version))
		}
	}
	return ops, nil
}

// deleteRows deletes the znodes of a flat tree, and returns those that have changed.
func (p *publisher) deleteRows(ctx context.Context, st *trees.State) ([]string, error) {
	var rels, kept []string
	for rel := range st.Nodes {
		if rel != "" {
			rels = append(rels, rel)
		}
	}
	deepestFirst(rels)
	ops := make([]session.Op, len(rels))
	for i, rel := range rels {
		ops[i] = session.DeleteOp(p.cfg.Path+"/"+rel, st.Nodes[rel].Stat.Version)
	}
	err := applyAll(ctx, p.s, []session.Op{p.guard}, ops, func(e *session.MultiError) bool {
		if p.otherTool(e) && !errors.Is(e, session.ErrNoNode) {
			kept = append(kept, strings.TrimPrefix(e.Path, p.cfg.Path+"/"))
		}
		return p.otherTool(e)
	})
	if err != nil {
		return nil, fmt.Errorf("delete flat keys: %w", err)
	}
	return kept, nil
}
