package recipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// The shared value.
//
// Steps: read; set with the version that was read, in one multi with our marker and a
// check of the era (see operations).

// Value is data that many clients change. Many goroutines may use it at once.
type Value struct {
	s    *session.Session
	path string
	ops  *operations
}

// Versioned is a value as it was read at one moment.
type Versioned struct {
	Data    []byte // nil where there is no znode
	Version int32  // of the data
	Exists  bool   // false: there is no znode
	mzxid   int64  // of the write that made it; 0: there is no znode
}

// NewValue returns the value at path. It does no I/O. A path without a znode has the
// empty value; the first CompareAndSet creates it.
func NewValue(s *session.Session, path string) *Value {
	return &Value{s: s, path: path, ops: newOperations(s, path)}
}

// Get returns the current value.
func (v *Value) Get(ctx context.Context) (Versioned, error) {
	data, stat, err := v.s.Get(ctx, v.path)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return Versioned{}, fmt.Errorf("value %s: %w", v.path, err)
	}
	return Versioned{Data: data, Version: stat.Version, Exists: err == nil, mzxid: stat.Mzxid}, nil
}

// CompareAndSet sets the value if it is still old, and reports whether it did. old comes
// from Get or Follow.
func (v *Value) CompareAndSet(ctx context.Context, old Versioned, data []byte) (bool, error) {
	return v.change(ctx, func(now Versioned) ([]byte, bool, error) { return data, now.mzxid == old.mzxid, nil })
}

// change sets what next returns for the current value. It returns false when next does. It
// reads again when another client was first.
func (v *Value) change(ctx context.Context, next func(Versioned) ([]byte, bool, error)) (bool, error) {
	for {
		era, err := v.ops.era(ctx)
		if err != nil {
			return false, err
		}
		now, err := v.Get(ctx)
		if err != nil {
			return false, err
		}
		data, wanted, err := next(now)
		if !wanted || err != nil {
			return false, err
		}
		ops := []session.Op{v.ops.sameEra(era), session.SetOp(v.path, data, now.Version)}
		if !now.Exists {
			ops = []session.Op{session.CreateOp(v.path, data, session.Persistent), v.ops.newEra()}
		}
		err = v.ops.do(ctx, ops...)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, session.ErrUnknown), !errors.Is(err, errEra) && !isRace(err):
			return false, fmt.Errorf("value %s: %w", v.path, err)
		}
	}
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
