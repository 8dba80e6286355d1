package config

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// The difference in ready.
//
// A host that holds the previous version learns a small change from its one read of
// ready. The difference is only a hint. The host applies it to the content with the
// digest From and computes the digest of the result. If that is not the digest in
// ready, the host reads the version instead.

// maxDelta bounds the difference that a publish puts into ready, in bytes of
// its JSON.
const maxDelta = 16 << 10

// Delta is the difference between two versions: from the one with the digest From
// to the one whose record contains the Delta.
type Delta struct {
	From string            `json:"from"`
	Set  map[string][]byte `json:"set,omitempty"`
	Del  []string          `json:"del,omitempty"`
}

// Fits reports whether the difference is not nil and takes at most so many bytes.
func (d *Delta) Fits(most int) bool {
	if d == nil {
		return false
	}
	size := 0
	for key, value := range d.Set { // An estimate first: most do not fit at all.
		size += len(key) + len(value)
	}
	if size > most {
		return false
	}
	data, err := json.Marshal(d)
	return err == nil && len(data) <= most
}

// deltaOf returns the changes as a Delta, or nil when they are too large.
func deltaOf(from digest, list []Change) *Delta {
	d := &Delta{From: from.String(), Set: map[string][]byte{}}
	for _, c := range list {
		if c.Kind == Removed {
			d.Del = append(d.Del, c.Key)
		} else {
			d.Set[c.Key] = slices.Concat([]byte{}, c.New) // never nil: null is no value
		}
	}
	if !d.Fits(maxDelta) {
		return nil
	}
	return d
}

// mayShow reports whether every identity that may read ready and the calls of
// rollouts may also read the contents. Otherwise a difference would leak contents.
func (p *publisher) mayShow(ctx context.Context) bool {
	var first []string
	for i, path := range []string{p.cfg.Path + "/" + elemObjects, readyPath(p.cfg.Path), ShardPath(p.cfg.Path, ShardNames()[0])} {
		acl, _, err := p.s.GetACL(ctx, path)
		if err != nil {
			return false
		}
		words := make([]string, len(acl))
		for j, a := range acl {
			words[j] = session.FormatACL(a)
		}
		slices.Sort(words)
		if i > 0 && !slices.Equal(first, words) {
			return false
		}
		first = words
	}
	return true
}

// apply applies the difference to c and returns the result. It fails when the
// digest of the result is not want.
func (c *content) apply(d *Delta, number int64, want digest) (*content, error) {
	edit := c.keys.Edit()
	touched := map[string]*entry{}
	for _, key := range d.Del {
		if err := ValidateKey(key); err != nil {
			return nil, fmt.Errorf("difference: %w", err)
		}
		edit.Delete(key)
		touched[key] = nil
	}
	for key, value := range d.Set {
		if err := ValidateKey(key); err != nil {
			return nil, fmt.Errorf("difference: %w", err)
		}
		if len(value) > maxObject {
			return nil, fmt.Errorf("difference: key %q: %w", key, ErrBounds)
		}
		edit.Set(key, view.Key{Value: value})
		touched[key] = &entry{key: key, size: int64(len(value)), sum: digestOf(value)}
	}
	next := &content{keys: edit.Done()}
	next.number = number
	if next.Count = next.keys.Len(); next.Count > MaxKeys {
		return nil, fmt.Errorf("difference: %d keys: %w", next.Count, ErrBounds)
	}
	next.rebuild(c, touched)
	if next.sum != want {
		return nil, fmt.Errorf("difference: makes %s of %s, %s is wanted: %w", next.sum, c.sum, want, ErrDigest)
	}
	next.Digest = next.sum.String()
	return next, nil
}

// rebuild makes the buckets of c from those of prev: those of touched keys, or
// all when their number changes.
func (c *content) rebuild(prev *content, touched map[string]*entry) {
	c.Bits, c.Size = bucketBits(c.Count), prev.Size
	dirty := map[int]bool{}
	if c.Bits == prev.Bits {
		c.lists, c.buckets = slices.Clone(prev.lists), slices.Clone(prev.buckets)
	} else {
		c.lists, c.buckets = make([][]entry, 1<<c.Bits), make([]digest, 1<<c.Bits)
		for _, list := range prev.lists {
			for _, e := range list {
				n := bucketOf(e.key, c.Bits)
				c.lists[n] = append(c.lists[n], e)
			}
		}
		for n := range c.lists {
			dirty[n] = true
			sortBucket(c.lists[n])
		}
	}
	for key, e := range touched {
		n := bucketOf(key, c.Bits)
		if !dirty[n] {
			dirty[n] = true
			c.lists[n] = append(make([]entry, 0, len(c.lists[n])+1), c.lists[n]...)
		}
		i, ok := slices.BinarySearchFunc(c.lists[n], key, func(e entry, key string) int { return strings.Compare(e.key, key) })
		if ok {
			c.Size -= c.lists[n][i].size
		}
		switch {
		case e == nil && ok:
			c.lists[n] = slices.Delete(c.lists[n], i, i+1)
		case e != nil && ok:
			c.lists[n][i] = *e
		case e != nil:
			c.lists[n] = slices.Insert(c.lists[n], i, *e)
		}
		if e != nil {
			c.Size += e.size
		}
	}
	for n := range dirty {
		c.buckets[n] = bucketDigest(c.lists[n])
	}
	c.sum = treeDigest(c.Bits, c.buckets)
}
