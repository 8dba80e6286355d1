package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Publishing a flat tree: the ready rule, the writer's side (ZooKeeper paper,
// 2.3).
//
// Steps, under the publishers' lock; every request is a multi that checks the
// lock's znode. If all changes fit into one multi, that multi deletes ready, makes
// the changes and creates ready, so no reader sees a state in between. Otherwise:
// delete ready; make the changes; create ready.
//
// A publisher that dies in between leaves the tree without ready. All readers keep
// the old tree, and the next publisher gets an error.
//
// After a lost reply the outcome of a step is unknown. Then the publisher reads the
// tree again and computes the remaining changes. No other publisher writes while it
// holds the lock, but tools without the lock may. So it sets and deletes keys only
// at the versions that it read. If a key has changed, it computes the remaining
// changes again. If it has changed nothing yet, and the publish expects a certain
// tree, it returns an error instead.

// flatSize is the size of an operation in a multi, besides path and data.
const flatSize = 160

func (p *publisher) flat(ctx context.Context, st *trees.State) (Result, error) {
	res := Result{Layout: config.LayoutFlat, Count: len(p.cfg.Keys), Changes: changesOf(st, view.KeysOf(p.cfg.Keys))}
	for key, v := range p.cfg.Keys {
		res.Size += int64(len(v))
		for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
			if v, ok := p.cfg.Keys[dir]; ok && len(v) == 0 {
				return Result{}, fmt.Errorf("config %s: key %q is empty and has keys below it, which a flat tree cannot tell from no key", p.cfg.Path, dir)
			}
		}
	}
	if st.Exists && len(res.Changes) == 0 {
		res.Unchanged, res.Generation = true, st.Generation()
		return res, nil
	}
	if err := p.s.CreateParents(ctx, trees.ReadyPath(p.cfg.Path)); err != nil {
		return Result{}, fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	touched := !st.Exists && st.Keys().Len() > 0
	for range maxTries {
		err := p.flatOnce(ctx, st, &touched)
		again := errors.Is(err, session.ErrUnknown) || p.otherTool(err) && (touched || p.cfg.Check == nil)
		if err != nil && !again {
			return Result{}, p.flatError(ctx, err, touched)
		}
		if st, err = trees.ReadState(ctx, p.s, p.cfg.Path); err != nil {
			return Result{}, p.flatError(ctx, err, touched)
		}
		if st.Exists && len(changesOf(st, view.KeysOf(p.cfg.Keys))) == 0 {
			res.Generation = st.Generation()
			return res, nil
		}
	}
	return Result{}, p.flatError(ctx, session.ErrUnknown, touched)
}

// flatError adds how to continue when ready was deleted already.
func (p *publisher) flatError(ctx context.Context, err error, touched bool) error {
	if touched {
		return fmt.Errorf("%w: %w", unfinishedError(p.cfg.Path), err)
	}
	if p.otherTool(err) {
		return p.cfg.otherTool(err)
	}
	return flipError(ctx, p.s, p.cfg.Path, err)
}

// otherTool reports whether a multi failed because a key has changed.
func (p *publisher) otherTool(err error) bool {
	multi, ok := errors.AsType[*session.MultiError](err)
	if !ok {
		return false
	}
	rel, below := strings.CutPrefix(multi.Path, p.cfg.Path+"/")
	if !below || trees.IsReserved(rel) {
		return false
	}
	changed := []error{session.ErrBadVersion, session.ErrNoNode, session.ErrNodeExists, session.ErrNotEmpty}
	return slices.ContainsFunc(changed, func(e error) bool { return errors.Is(multi.Err, e) })
}

// flatOnce sets touched before the first request that can leave the tree without ready.
func (p *publisher) flatOnce(ctx context.Context, st *trees.State, touched *bool) error {
	ready := trees.ReadyPath(p.cfg.Path)
	begin := p.unlessFrozen()
	if st.Exists {
		// Flat publishers delete ready and create it again, so its version is
		// nearly always 0 and says nothing about a writer without the lock. That is
		// fine: keys are changed at the versions that were read, and the read after
		// this finds what that writer did to the other keys. That read must show
		// the wanted tree.
		begin = append(begin, session.DeleteOp(ready, st.Stat.Version))
	}
	end := session.CreateOp(ready, nil, session.Persistent)
	batches := p.flatOps(st)
	do := func(step string, ops []session.Op) error {
		err := p.cfg.at(step)
		if err == nil {
			_, err = p.s.Multi(ctx, ops...)
		}
		return err
	}
	if len(batches) <= 1 {
		return do("all", append(append(begin, slices.Concat(batches...)...), end))
	}
	if err := do("begin", begin); err != nil {
		*touched = *touched || errors.Is(err, session.ErrUnknown)
		return err
	}
	*touched = true
	for _, batch := range batches {
		if err := do("keys", append([]session.Op{p.guard}, batch...)); err != nil {
			return err
		}
	}
	return do("ready", append(p.unlessFrozen(), end))
}

// flatOps returns deletes, deepest first, then creates and sets, parents first. Each
// batch fits into one multi, with the operations before and after it.
func (p *publisher) flatOps(st *trees.State) [][]session.Op {
	var batches [][]session.Op
	size := 0
	add := func(op session.Op, data int) {
		n := len(op.Path()) + data + flatSize
		if len(batches) == 0 || size+n > multiBytes || len(batches[len(batches)-1]) == 4*multiOps {
			batches, size = append(batches, nil), 0
		}
		last := &batches[len(batches)-1]
		*last, size = append(*last, op), size+n
	}
	want := p.cfg.znodes()
	var gone []string
	for rel := range st.Nodes {
		if _, ok := want[rel]; !ok && rel != "" {
			gone = append(gone, rel)
		}
	}
	deepestFirst(gone)
	for _, rel := range gone {
		add(session.DeleteOp(p.cfg.Path+"/"+rel, st.Nodes[rel].Stat.Version), 0)
	}
	for _, rel := range slices.Sorted(maps.Keys(want)) {
		row, znode := st.Nodes[rel], p.cfg.Path+"/"+rel
		switch {
		case row == nil:
			add(session.CreateOp(znode, want[rel], session.Persistent), len(want[rel]))
		case !bytes.Equal(row.Data, want[rel]):
			add(session.SetOp(znode, want[rel], row.Stat.Version), len(want[rel]))
		}
	}
	return batches
}

// znodes returns the znodes of a flat tree: the keys and their parents.
func (c *PublishConfig) znodes() map[string][]byte {
	znodes := make(map[string][]byte, len(c.Keys))
	for key, value := range c.Keys {
		znodes[key] = value
		for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
			if _, ok := c.Keys[dir]; !ok {
				znodes[dir] = nil
			}
		}
	}
	return znodes
}

func depth(rel string) int { return strings.Count(rel, "/") }

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
	ops := lists.Map(rels, func(rel string) session.Op { return session.DeleteOp(p.cfg.Path+"/"+rel, st.Nodes[rel].Stat.Version) })
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
