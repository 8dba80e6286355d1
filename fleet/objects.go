package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// object is one content to be stored.
type object struct {
	sum  trees.Digest
	data []byte
}

// writeObjects stores the objects that are not stored yet.
func (p *publisher) writeObjects(ctx context.Context, objects map[trees.Digest][]byte) error {
	if len(objects) == 0 {
		return nil
	}
	if err := p.cfg.at("objects"); err != nil {
		return err
	}
	sorted := make([]object, 0, len(objects))
	for sum, data := range objects {
		sorted = append(sorted, object{sum, data})
	}
	slices.SortFunc(sorted, func(a, b object) int { return bytes.Compare(a.sum[:], b.sum[:]) })
	if err := p.objectParents(ctx, sorted); err != nil {
		return err
	}
	for len(sorted) > 0 {
		n, size := 1, len(sorted[0].data)
		for n < len(sorted) && n < multiOps && size+len(sorted[n].data) <= multiBytes {
			size += len(sorted[n].data)
			n++
		}
		if err := p.writeBatch(ctx, sorted[:n]); err != nil {
			return fmt.Errorf("config %s: write objects: %w", p.cfg.Path, err)
		}
		sorted = sorted[n:]
	}
	return nil
}

// objectParents creates the directories of the objects that do not exist yet.
func (p *publisher) objectParents(ctx context.Context, objects []object) error {
	dir := trees.ObjectsPath(p.cfg.Path)
	if err := p.s.CreateParents(ctx, dir+"/00"); err != nil {
		return fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	names, _, err := p.s.Children(ctx, dir)
	if err != nil {
		return fmt.Errorf("config %s: list objects: %w", p.cfg.Path, err)
	}
	var missing []string
	for _, o := range objects {
		if name := hex.EncodeToString(o.sum[:1]); !slices.Contains(names, name) {
			names = append(names, name)
			missing = append(missing, dir+"/"+name)
		}
	}
	return p.createAll(ctx, missing)
}

// writeBatch creates objects in one multi. Some may exist already, from a publisher
// that died or from our own write whose reply was lost. Then it verifies the
// existing ones, repairs them if needed, and creates the rest.
func (p *publisher) writeBatch(ctx context.Context, objects []object) error {
	for range maxTries {
		ops := []session.Op{p.guard}
		for _, o := range objects {
			ops = append(ops, session.CreateOp(trees.ObjectPath(p.cfg.Path, o.sum), o.data, session.Persistent))
		}
		_, err := p.s.Multi(ctx, ops...)
		var multi *session.MultiError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &multi) && multi.Index > 0 && errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrUnknown):
			if objects, err = p.missing(ctx, objects); err != nil {
				return err
			}
		default:
			return err
		}
		if len(objects) == 0 {
			return nil
		}
	}
	return session.ErrUnknown
}

// missing returns those of the objects that do not exist.
func (p *publisher) missing(ctx context.Context, objects []object) ([]object, error) {
	paths := make([]string, len(objects))
	for i, o := range objects {
		paths[i] = trees.ObjectPath(p.cfg.Path, o.sum)
	}
	results, err := p.s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	var missing []object
	for i, r := range results {
		switch {
		case errors.Is(r.Err, session.ErrNoNode):
			missing = append(missing, objects[i])
		case r.Err != nil:
			return nil, r.Err
		case trees.Verify(objects[i].sum, r.Data) != nil:
			if _, err := p.s.Set(ctx, paths[i], objects[i].data, r.Stat.Version); err != nil {
				return nil, fmt.Errorf("repair object %s: %w", objects[i].sum, err)
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
