package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// The shared value.
//
// Steps: read; set with the version that was read, in one multi with our marker and a
// check of the era (see operations).

// Value is a value that many clients change. A []byte is the data of the znode as it is;
// of any other T the data are JSON. Many goroutines may use it at once.
type Value[T any] struct {
	s    *session.Session
	path string
	ops  *operations
}

// Versioned is a value as it was read at one moment.
type Versioned[T any] struct {
	Data    T     // the zero value where there is no znode, or one without data
	Version int32 // of the data
	Exists  bool  // false: there is no znode
	mzxid   int64 // of the write that made it; 0: there is no znode
}

// NewValue returns the value at path. It does no I/O. A path without a znode has the
// empty value; the first CompareAndSet creates it.
func NewValue[T any](s *session.Session, path string) *Value[T] {
	return &Value[T]{s: s, path: path, ops: newOperations(s, path)}
}

// Get returns the current value. The error matches ErrFormat when the data is not a T.
func (v *Value[T]) Get(ctx context.Context) (Versioned[T], error) {
	data, stat, err := v.s.Get(ctx, v.path)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return Versioned[T]{}, fmt.Errorf("value %s: %w", v.path, err)
	}
	return v.decode(data, stat, err == nil)
}

func (v *Value[T]) decode(data []byte, stat session.Stat, exists bool) (Versioned[T], error) {
	got := Versioned[T]{Version: stat.Version, Exists: exists, mzxid: stat.Mzxid}
	if raw, ok := any(&got.Data).(*[]byte); ok {
		*raw = data
	} else if len(data) > 0 {
		if err := json.Unmarshal(data, &got.Data); err != nil {
			return Versioned[T]{}, fmt.Errorf("value %s: %w: %w", v.path, ErrFormat, err)
		}
	}
	return got, nil
}

func (v *Value[T]) encode(value T) ([]byte, error) {
	if raw, ok := any(value).([]byte); ok {
		return raw, nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("value %s: %w: %w", v.path, ErrFormat, err)
	}
	return data, nil
}

// Update sets what next returns for the current value, and returns what was set. next is
// called again with a newer value when another client was first. Its error is returned,
// and nothing is set.
func (v *Value[T]) Update(ctx context.Context, next func(T) (T, error)) (T, error) {
	var set T
	_, err := v.change(ctx, func(now Versioned[T]) (T, bool, error) {
		var err error
		set, err = next(now.Data)
		return set, true, err
	})
	return set, err
}

// CompareAndSet sets the value if it is still old, and reports whether it did. old comes
// from Get or Follow.
func (v *Value[T]) CompareAndSet(ctx context.Context, old Versioned[T], data T) (bool, error) {
	return v.change(ctx, func(now Versioned[T]) (T, bool, error) { return data, now.mzxid == old.mzxid, nil })
}

// change sets what next returns for the current value. It returns false when next does. It
// reads again when another client was first.
func (v *Value[T]) change(ctx context.Context, next func(Versioned[T]) (T, bool, error)) (bool, error) {
	for {
		era, err := v.ops.era(ctx)
		if err != nil {
			return false, err
		}
		now, err := v.Get(ctx)
		if err != nil {
			return false, err
		}
		value, wanted, err := next(now)
		if !wanted || err != nil {
			return false, err
		}
		data, err := v.encode(value)
		if err != nil {
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
// session ends. It returns the cause, or an error that matches ErrFormat for data that
// are not a T.
func (v *Value[T]) Follow(ctx context.Context, up func(Versioned[T])) error {
	last := Versioned[T]{mzxid: -1}
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
func (v *Value[T]) getW(ctx context.Context) (Versioned[T], *session.Watch, error) {
	for {
		data, stat, watch, err := v.s.GetW(ctx, v.path)
		if err == nil {
			var now Versioned[T]
			if now, err = v.decode(data, stat, true); err != nil {
				watch.Stop()
			}
			return now, watch, err
		}
		if !errors.Is(err, session.ErrNoNode) {
			return Versioned[T]{}, nil, err
		}
		_, exists, watch, err := v.s.ExistsW(ctx, v.path)
		if err != nil || !exists {
			return Versioned[T]{}, watch, err
		}
		watch.Stop() // it was created in between
	}
}
