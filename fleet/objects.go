package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

func (p *publisher) writeObjects(ctx context.Context, objects map[trees.Digest][]byte) error {
	if len(objects) == 0 {
		return nil
	}
	if err := p.cfg.at("objects"); err != nil {
		return err
	}
	sums := slices.SortedFunc(maps.Keys(objects), func(a, b trees.Digest) int { return bytes.Compare(a[:], b[:]) })
	if err := p.objectParents(ctx, sums); err != nil {
		return err
	}
	for len(sums) > 0 {
		n, size := 1, len(objects[sums[0]])
		for n < len(sums) && n < multiOps && size+len(objects[sums[n]]) <= multiBytes {
			size += len(objects[sums[n]])
			n++
		}
		if err := p.writeBatch(ctx, sums[:n], objects); err != nil {
			return fmt.Errorf("config %s: write objects: %w", p.cfg.Path, err)
		}
		sums = sums[n:]
	}
	return nil
}

// objectParents creates the directories of the objects that do not exist yet.
func (p *publisher) objectParents(ctx context.Context, sums []trees.Digest) error {
	dir := trees.ObjectsPath(p.cfg.Path)
	if err := p.s.CreateParents(ctx, dir+"/00"); err != nil {
		return fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	names, _, err := p.s.Children(ctx, dir)
	if err != nil {
		return fmt.Errorf("config %s: list objects: %w", p.cfg.Path, err)
	}
	var missing []string
	for _, sum := range sums {
		if name := hex.EncodeToString(sum[:1]); !slices.Contains(names, name) {
			names = append(names, name)
			missing = append(missing, dir+"/"+name)
		}
	}
	return p.createAll(ctx, missing)
}

// writeBatch creates objects in one multi. Some may exist already, from a publisher
// that died or from our own write whose reply was lost. Then it verifies the
// existing ones, repairs them if needed, and creates the rest.
func (p *publisher) writeBatch(ctx context.Context, sums []trees.Digest, objects map[trees.Digest][]byte) error {
	for range maxTries {
		ops := []session.Op{p.guard}
		for _, sum := range sums {
			ops = append(ops, session.CreateOp(trees.ObjectPath(p.cfg.Path, sum), objects[sum], session.Persistent))
		}
		_, err := p.s.Multi(ctx, ops...)
		var multi *session.MultiError
		exists := errors.As(err, &multi) && multi.Index > 0 && errors.Is(err, session.ErrNodeExists)
		if !exists && !errors.Is(err, session.ErrUnknown) {
			return err
		}
		if sums, err = p.missing(ctx, sums, objects); err != nil || len(sums) == 0 {
			return err
		}
	}
	return session.ErrUnknown
}

func (p *publisher) missing(ctx context.Context, sums []trees.Digest, objects map[trees.Digest][]byte) ([]trees.Digest, error) {
	paths := make([]string, len(sums))
	for i, sum := range sums {
		paths[i] = trees.ObjectPath(p.cfg.Path, sum)
	}
	results, err := p.s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	var missing []trees.Digest
	for i, r := range results {
		switch {
		case errors.Is(r.Err, session.ErrNoNode):
			missing = append(missing, sums[i])
		case r.Err != nil:
			return nil, r.Err
		case trees.Verify(sums[i], r.Data) != nil:
			if _, err := p.s.Set(ctx, paths[i], objects[sums[i]], r.Stat.Version); err != nil {
				return nil, fmt.Errorf("repair object %s: %w", sums[i], err)
			}
		}
	}
	return missing, nil
}

// deepestFirst orders paths so that children come before their parents.
func deepestFirst(paths []string) {
	slices.SortFunc(paths, func(a, b string) int {
		return cmp.Or(cmp.Compare(depth(b), depth(a)), cmp.Compare(a, b))
	})
}
