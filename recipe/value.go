package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// The shared value.
//
//	<path>                  data = the value as it is (Apache Curator's SharedValue)
//	<path>-ops/_c_<uuid>    ephemeral, our marker (rule of lost replies)
//
// Steps: read; set with the version that was read, in one multi with our marker.
//
// Guarantees: a CompareAndSet that returns true was applied once; one that returns
// false was not applied. Follow reports the newest value, and none twice in a row. Not
// guaranteed: that Follow sees every value; that a CompareAndSet notices a znode that
// was deleted and made again meanwhile and has the same version.

// Value is data that many clients change. Many goroutines may use it at once.
type Value struct {
	s    *session.Session
	path string
	ops  operations
}

// Versioned is a value as it was read at one moment.
type Versioned struct {
	Data    []byte // nil where there is no znode
	Version int32  // for CompareAndSet
	Exists  bool   // false: there is no znode
	mzxid   int64  // of the write that made it
}

// NewValue returns the value at path. It does no I/O. A path without a znode has the
// empty value; the first CompareAndSet creates it.
func NewValue(s *session.Session, path string) *Value {
	return &Value{s: s, path: path, ops: newOperations(s, path)}
}

// Get returns the current value.
func (v *Value) Get(ctx context.Context) (Versioned, error) {
	data, stat, err := v.s.Get(ctx, v.path)
	switch {
	case errors.Is(err, session.ErrNoNode):
		return Versioned{}, nil
	case err != nil:
		return Versioned{}, fmt.Errorf("value %s: %w", v.path, err)
	}
	return Versioned{Data: data, Version: stat.Version, Exists: true, mzxid: stat.Mzxid}, nil
}

// CompareAndSet sets the value if it is still old, and reports whether it did. old comes
// from Get or Follow.
func (v *Value) CompareAndSet(ctx context.Context, old Versioned, data []byte) (bool, error) {
	op := session.SetOp(v.path, data, old.Version)
	if !old.Exists {
		op = session.CreateOp(v.path, data, session.Persistent)
	}
	err := withParents(ctx, v.s, v.path, func() error { return v.ops.do(ctx, op) })
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, session.ErrUnknown):
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrNoNode):
		return false, nil
	}
	return false, fmt.Errorf("value %s: %w", v.path, err)
}

// Follow calls up with the value, at once and after each change, until ctx or the
// session ends. It returns the cause.
func (v *Value) Follow(ctx context.Context, up func(Versioned)) error {
	last := Versioned{mzxid: -1}
	for {
		now, watch, err := v.getW(ctx)
		if err != nil {
			return fmt.Errorf("follow value %s: %w", v.path, err)
		}
		if now.mzxid != last.mzxid {
			last = now
			up(now)
		}
		if err := watch.Wait(ctx); err != nil {
			return err
		}
	}
}

// getW is Get with a watch. Without a znode the watch fires on its creation.
func (v *Value) getW(ctx context.Context) (Versioned, *session.Watch, error) {
	for {
		data, stat, watch, err := v.s.GetW(ctx, v.path)
		if !errors.Is(err, session.ErrNoNode) {
			return Versioned{Data: data, Version: stat.Version, Exists: true, mzxid: stat.Mzxid}, watch, err
		}
		_, exists, watch, err := v.s.ExistsW(ctx, v.path)
		if err != nil || !exists {
			return Versioned{}, watch, err
		}
		watch.Stop() // it was created in between
	}
}

// Follow calls up with the counter's value, at once and after each change, until ctx or
// the session ends. It returns the cause. It returns an error for a value that it cannot
// decode.
func (c *Counter) Follow(ctx context.Context, up func(int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return NewValue(c.s, c.cfg.Path).Follow(ctx, func(v Versioned) {
		n, err := c.decode(v.Data)
		if err != nil {
			cancel(fmt.Errorf("counter %s: %w", c.cfg.Path, err))
			return
		}
		up(n)
	})
}
