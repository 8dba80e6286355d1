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

// flat makes the keys the tree in use.
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
	if len(batches) <= 1 {
		if err := p.cfg.at("all"); err != nil {
			return err
		}
		_, err := p.s.Multi(ctx, append(append(begin, slices.Concat(batches...)...), end)...)
		return err
	}
	if err := p.cfg.at("begin"); err != nil {
		return err
	}
	if _, err := p.s.Multi(ctx, begin...); err != nil {
		*touched = *touched || errors.Is(err, session.ErrUnknown)
		return err
	}
	*touched = true
	for _, batch := range batches {
		if err := p.cfg.at("keys"); err != nil {
			return err
		}
		if _, err := p.s.Multi(ctx, append([]session.Op{p.guard}, batch...)...); err != nil {
			return err
		}
	}
	if err := p.cfg.at("ready"); err != nil {
		return err
	}
	_, err := p.s.Multi(ctx, append(p.unlessFrozen(), end)...)
	return err
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
