package trees

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/view"
)

// The difference in ready.
//
// A host that holds the previous version learns a small change from its one read of
// ready. The difference is only a hint. The host applies it to the content with the
// digest From and computes the digest of the result. If that is not the digest in
// ready, the host reads the version instead.

// MaxDelta bounds the difference that a publish puts into ready, in bytes of
// its JSON.
const MaxDelta = 16 << 10

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

// Apply applies the difference to c and returns the result. It fails when the
// digest of the result is not want.
func (c *Content) Apply(d *Delta, number int64, want Digest) (*Content, error) {
	edit := c.Keys.Edit()
	touched := map[string]*Entry{}
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
		if len(value) > MaxObject {
			return nil, fmt.Errorf("difference: key %q: %w", key, ErrBounds)
		}
		edit.Set(key, view.Key{Value: value})
		touched[key] = &Entry{Key: key, Size: int64(len(value)), Sum: DigestOf(value)}
	}
	next := &Content{Keys: edit.Done()}
	next.Number = number
	if next.Count = next.Keys.Len(); next.Count > MaxKeys {
		return nil, fmt.Errorf("difference: %d keys: %w", next.Count, ErrBounds)
	}
	next.rebuild(c, touched)
	if next.Sum != want {
		return nil, fmt.Errorf("difference: makes %s of %s, %s is wanted: %w", next.Sum, c.Sum, want, ErrDigest)
	}
	next.Digest = next.Sum.String()
	return next, nil
}

// rebuild makes the buckets of c from those of prev: those of touched keys, or
// all when their number changes.
func (c *Content) rebuild(prev *Content, touched map[string]*Entry) {
	c.Bits, c.Size = BucketBits(c.Count), prev.Size
	dirty := map[int]bool{}
	if c.Bits == prev.Bits {
		c.Lists, c.Buckets = slices.Clone(prev.Lists), slices.Clone(prev.Buckets)
	} else {
		c.Lists, c.Buckets = make([][]Entry, 1<<c.Bits), make([]Digest, 1<<c.Bits)
		for _, list := range prev.Lists {
			for _, e := range list {
				n := BucketOf(e.Key, c.Bits)
				c.Lists[n] = append(c.Lists[n], e)
			}
		}
		for n := range c.Lists {
			dirty[n] = true
			sortBucket(c.Lists[n])
		}
	}
	for key, e := range touched {
		n := BucketOf(key, c.Bits)
		if !dirty[n] {
			dirty[n] = true
			c.Lists[n] = append(make([]Entry, 0, len(c.Lists[n])+1), c.Lists[n]...)
		}
		i, ok := FindEntry(c.Lists[n], key)
		if ok {
			c.Size -= c.Lists[n][i].Size
		}
		switch {
		case e == nil && ok:
			c.Lists[n] = slices.Delete(c.Lists[n], i, i+1)
		case e != nil && ok:
			c.Lists[n][i] = *e
		case e != nil:
			c.Lists[n] = slices.Insert(c.Lists[n], i, *e)
		}
		if e != nil {
			c.Size += e.Size
		}
	}
	for n := range dirty {
		c.Buckets[n] = bucketDigest(c.Lists[n])
	}
	c.Sum = TreeDigest(c.Bits, c.Buckets)
}
