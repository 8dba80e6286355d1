package recipe

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/session"
)

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

// Follow calls up with the counter's value, at once and after each change, until ctx or
// the session ends. It returns the cause. It returns an error for a value that it cannot
// decode.
func (c *Counter) Follow(ctx context.Context, up func(int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return c.value.Follow(ctx, func(v Versioned[[]byte]) {
		n, err := c.decode(v.Data)
		if err != nil {
			cancel(err)
			return
		}
		up(n)
	})
}
