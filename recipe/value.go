package recipe

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
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
	s = session.Usable(s, path)
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

// Update calls next with the current value, sets the value that next returns, and
// returns it. If another client changes the value first, Update calls next again with
// the newer value. If next returns an error, Update returns it and sets nothing.
func (v *Value[T]) Update(ctx context.Context, next func(T) (T, error)) (T, error) {
	var set T
	if next == nil {
		return set, session.ErrNoCallback
	}
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
		data, raw := any(value).([]byte)
		if !raw {
			if data, err = json.Marshal(value); err != nil {
				return false, fmt.Errorf("value %s: %w: %w", v.path, ErrFormat, err)
			}
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

// Follow calls up with the value, at once and after a change, until ctx or the session
// ends. It may skip writes, and reports none twice. It returns nil when ctx ends, the cause
// when the session ends, and an error that matches ErrFormat for data that are not a T.
func (v *Value[T]) Follow(ctx context.Context, up func(Versioned[T])) error {
	if up == nil {
		return session.ErrNoCallback
	}
	last := Versioned[T]{mzxid: -1}
	for {
		now, watch, err := v.getW(ctx)
		if err != nil {
			return mirror.Ended(ctx, v.s, fmt.Errorf("follow value %s: %w", v.path, err))
		}
		if now.mzxid != last.mzxid {
			last = now
			up(now)
		}
		if err := watch.Wait(ctx); err != nil {
			return mirror.Ended(ctx, v.s, err)
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

// The counter.
//
// The value is eight bytes, big-endian (Apache Curator's DistributedAtomicLong,
// the default), four (Curator's SharedCount, and kazoo's Counter with
// support_curator), or decimal text (kazoo's Counter).
//
// Steps: those of [Value]; when another client was first, read again.

// Layouts of a counter, for CounterConfig.Dialect.
const (
	// CounterLong is eight bytes, big-endian: the default.
	CounterLong = "curator"
	// CounterShared is four bytes, big-endian.
	CounterShared = "curator-shared"
	// CounterText is decimal text.
	CounterText = "kazoo"
)

// CounterConfig describes a counter.
type CounterConfig struct {
	Path    string // of the znode that holds the value
	Dialect string // CounterLong (default), CounterShared or CounterText
}

// Counter is a number that many clients change. It may be used by many
// goroutines at once.
type Counter struct {
	cfg   CounterConfig
	value *Value[[]byte]
}

// NewCounter returns a counter of the session. It does no I/O. A path without a
// znode counts as zero; the first Add creates it.
func NewCounter(s *session.Session, cfg CounterConfig) *Counter {
	return &Counter{cfg, NewValue[[]byte](s, cfg.Path)}
}

// Value returns the current value.
func (c *Counter) Value(ctx context.Context) (int64, error) {
	now, err := c.value.Get(ctx)
	if err != nil {
		return 0, err
	}
	return c.decode(now.Data)
}

// Add adds delta and returns the new value.
func (c *Counter) Add(ctx context.Context, delta int64) (int64, error) {
	var sum int64
	_, err := c.change(ctx, func(n int64) (int64, bool, error) {
		if sum = n + delta; (sum > n) != (delta > 0) && delta != 0 {
			return 0, false, fmt.Errorf("counter %s: %d + %d: %w", c.cfg.Path, n, delta, ErrRange)
		}
		return sum, true, nil
	})
	if err != nil {
		return 0, err
	}
	return sum, nil
}

// CompareAndSet sets the counter to next if it is old, and reports whether it did.
func (c *Counter) CompareAndSet(ctx context.Context, old, next int64) (bool, error) {
	return c.change(ctx, func(n int64) (int64, bool, error) { return next, n == old, nil })
}

// change sets what next returns for the current number. It returns false when next does.
func (c *Counter) change(ctx context.Context, next func(int64) (int64, bool, error)) (bool, error) {
	return c.value.change(ctx, func(now Versioned[[]byte]) ([]byte, bool, error) {
		n, err := c.decode(now.Data)
		if err != nil {
			return nil, false, err
		}
		n, wanted, err := next(n)
		if !wanted || err != nil {
			return nil, false, err
		}
		data, err := c.encode(n)
		return data, true, err
	})
}

func (c *Counter) encode(n int64) ([]byte, error) {
	switch c.cfg.Dialect {
	case "", CounterLong:
		return binary.BigEndian.AppendUint64(nil, uint64(n)), nil //nolint:gosec // two's complement is the format
	case CounterShared:
		if n < math.MinInt32 || n > math.MaxInt32 {
			return nil, fmt.Errorf("counter %s: %d: %w", c.cfg.Path, n, ErrRange)
		}
		return binary.BigEndian.AppendUint32(nil, uint32(int32(n))), nil //nolint:gosec // two's complement is the format
	case CounterText:
		return strconv.AppendInt(nil, n, 10), nil
	}
	return nil, fmt.Errorf("counter %s: %w %q", c.cfg.Path, ErrDialect, c.cfg.Dialect)
}

// decode reads the value. An empty znode counts as zero.
func (c *Counter) decode(data []byte) (int64, error) {
	switch {
	case len(data) == 0:
		return 0, nil
	case c.cfg.Dialect == CounterText:
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("counter %s: %w: %w", c.cfg.Path, ErrFormat, err)
		}
		return n, nil
	case c.cfg.Dialect == CounterShared && len(data) == 4:
		return int64(int32(binary.BigEndian.Uint32(data))), nil //nolint:gosec // two's complement is the format
	case c.cfg.Dialect != CounterShared && len(data) == 8:
		return int64(binary.BigEndian.Uint64(data)), nil //nolint:gosec // two's complement is the format
	}
	return 0, fmt.Errorf("counter %s: %w: %d bytes", c.cfg.Path, ErrFormat, len(data))
}

// Follow is [Value.Follow] of the number. It returns an error for a value that it cannot
// decode.
func (c *Counter) Follow(ctx context.Context, up func(int64)) error {
	if up == nil {
		return session.ErrNoCallback
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	err := c.value.Follow(run, func(v Versioned[[]byte]) {
		n, err := c.decode(v.Data)
		if failed = err; err != nil {
			cancel()
			return
		}
		up(n)
	})
	return cmp.Or(failed, err)
}

// The lease: who runs a job for the next hour, without a process that holds anything.
//
//	<path>/lease_holder                     {"version": 1, "holder": id, "end": UTC time}
//	<path>/<32 hex>__lock__<sequence>       the lock under which it is read and written
//
// Steps (kazoo, NonBlockingLease): take the lock; read the holder; when the lease is free,
// over or ours, replace it in one transaction with a check of the lock.
//
// Not guaranteed: one holder at a time where clocks differ. The end is by the clocks of
// the clients, in whole seconds. A [Lock] needs no clocks.

// leaseVersion is the version of the layout, and leaseTime its time, in UTC.
const (
	leaseVersion = 1
	leaseTime    = "2006-01-02T15:04:05"
)

// LeaseConfig describes a lease.
type LeaseConfig struct {
	Path     string
	Holder   string        // who we are: the same holder renews its lease
	Duration time.Duration // of a lease, in whole seconds; at least one
}

// Lease is a lease that outlives processes and sessions. Many goroutines may use it at
// once.
type Lease struct {
	s   *session.Session
	cfg LeaseConfig
}

// LeaseTerm is a lease that somebody holds or held.
type LeaseTerm struct {
	Holder string
	End    time.Time // by the clock of the holder
	Fence  int64     // czxid of its znode: it grows with each TryAcquire that succeeds
}

type leaseData struct {
	Version int    `json:"version"`
	Holder  string `json:"holder"`
	End     string `json:"end"`
}

// NewLease returns a lease. It does no I/O.
func NewLease(s *session.Session, cfg LeaseConfig) *Lease {
	return &Lease{session.Usable(s, cfg.Path), cfg}
}

func (l *Lease) path() string { return child(l.cfg.Path, "lease_holder") }

// Holder returns the current or last holder. The error matches session.ErrNoNode when
// there was none, and ErrFormat when the data has another layout.
func (l *Lease) Holder(ctx context.Context) (LeaseTerm, error) {
	raw, stat, err := l.s.Get(ctx, l.path())
	if err != nil {
		return LeaseTerm{}, fmt.Errorf("lease %s: %w", l.cfg.Path, err)
	}
	var data leaseData
	if err = json.Unmarshal(raw, &data); err == nil && data.Version != leaseVersion {
		err = fmt.Errorf("version %d, this is %d", data.Version, leaseVersion)
	}
	var end time.Time
	if err == nil {
		end, err = time.Parse(leaseTime, data.End)
	}
	if err != nil {
		return LeaseTerm{}, fmt.Errorf("lease %s: %w: %w", l.cfg.Path, ErrFormat, err)
	}
	return LeaseTerm{Holder: data.Holder, End: end, Fence: stat.Czxid}, nil
}

// TryAcquire takes the lease, or renews ours. It does not wait for another holder: it
// returns their term and an error that matches ErrHeld.
func (l *Lease) TryAcquire(ctx context.Context) (LeaseTerm, error) {
	var term LeaseTerm
	if l.cfg.Holder == "" || l.cfg.Duration < time.Second {
		return term, fmt.Errorf("lease %s: %w: Holder is %q and Duration %s; a lease has a holder, and a second or more", l.cfg.Path, ErrFormat, l.cfg.Holder, l.cfg.Duration)
	}
	hold, err := NewLock(l.s, LockConfig{Path: l.cfg.Path, Dialect: Kazoo, Data: []byte(l.cfg.Holder)}).Acquire(ctx)
	if err != nil {
		return term, fmt.Errorf("lease %s: %w", l.cfg.Path, err)
	}
	err = hold.run(ctx, func(ctx context.Context, hold *Hold) error {
		for {
			term, err = l.take(ctx, hold)
			if !errors.Is(err, session.ErrUnknown) && !isRace(err) {
				return err
			}
		}
	})
	return term, err
}

// take replaces the lease if it is free, over or ours.
func (l *Lease) take(ctx context.Context, hold *Hold) (LeaseTerm, error) {
	term, err := l.Holder(ctx)
	free := errors.Is(err, session.ErrNoNode)
	now := time.Now().UTC()
	switch {
	case err != nil && !free:
		return term, err
	case !free && term.Holder != l.cfg.Holder && now.Before(term.End):
		return term, fmt.Errorf("lease %s: %w by %s until %s", l.cfg.Path, ErrHeld, term.Holder, term.End.Format(time.RFC3339))
	}
	term = LeaseTerm{Holder: l.cfg.Holder, End: now.Add(l.cfg.Duration).Truncate(time.Second)}
	data, err := json.Marshal(leaseData{leaseVersion, term.Holder, term.End.Format(leaseTime)})
	if err != nil {
		return term, err
	}
	ops := []session.Op{hold.Guard(), session.CreateOp(l.path(), data, session.Persistent)}
	if !free {
		ops = []session.Op{hold.Guard(), session.DeleteOp(l.path(), -1), ops[1]}
	}
	results, err := l.s.Multi(ctx, ops...)
	if failed, ok := errors.AsType[*session.MultiError](err); ok && failed.Index == 0 {
		err = ErrLost // of the lock, before its hold has seen it
	}
	if err != nil {
		return term, fmt.Errorf("lease %s: %w", l.cfg.Path, err)
	}
	term.Fence = results[len(results)-1].Stat.Czxid
	return term, nil
}
