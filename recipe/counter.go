package recipe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// The counter.
//
//	<path>                        data = the value
//	<path>-ops/_c_<uuid>          ephemeral, our marker (rule of lost replies)
//
// The value is eight bytes, big-endian (Apache Curator's DistributedAtomicLong,
// the default), four (Curator's SharedCount, and kazoo's Counter with
// support_curator), or decimal text (kazoo's Counter).
//
// Steps: read; set at the version that was read, in one multi with our marker;
// when another client was first, read again.
//
// Guarantees: every Add is applied exactly once, or returns an error. The error
// matches session.ErrUnknown when the Add may have been applied; that happens only
// when the session ended. Not guaranteed: anything when another client deletes the
// znode and makes it again meanwhile.

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
	s   *session.Session
	cfg CounterConfig
	ops operations
}

// NewCounter returns a counter of the session. It does no I/O. A path without a
// znode counts as zero; the first Add creates it.
func NewCounter(s *session.Session, cfg CounterConfig) *Counter {
	return &Counter{s: s, cfg: cfg, ops: newOperations(s, cfg.Path)}
}

// Value returns the current value.
func (c *Counter) Value(ctx context.Context) (int64, error) {
	n, _, _, err := c.read(ctx)
	return n, err
}

// Add adds delta and returns the new value.
func (c *Counter) Add(ctx context.Context, delta int64) (int64, error) {
	for {
		n, version, exists, err := c.read(ctx)
		if err != nil {
			return 0, err
		}
		sum := n + delta
		if (sum > n) != (delta > 0) && delta != 0 {
			return 0, fmt.Errorf("counter %s: %d + %d: %w", c.cfg.Path, n, delta, ErrRange)
		}
		done, err := c.write(ctx, sum, version, exists)
		if done || err != nil {
			return sum, err
		}
	}
}

// CompareAndSet sets the counter to next if it is old, and reports whether it did.
func (c *Counter) CompareAndSet(ctx context.Context, old, next int64) (bool, error) {
	for {
		n, version, exists, err := c.read(ctx)
		if err != nil || n != old {
			return false, err
		}
		done, err := c.write(ctx, next, version, exists)
		if done || err != nil {
			return done, err
		}
	}
}

// write makes one attempt. It returns false when another client was first.
func (c *Counter) write(ctx context.Context, n int64, version int32, exists bool) (bool, error) {
	data, err := c.encode(n)
	if err != nil {
		return false, err
	}
	op := session.SetOp(c.cfg.Path, data, version)
	if !exists {
		op = session.CreateOp(c.cfg.Path, data, session.Persistent)
	}
	err = withParents(ctx, c.s, c.cfg.Path, func() error { return c.ops.do(ctx, op) })
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrNoNode):
		return false, nil
	}
	return false, fmt.Errorf("counter %s: %w", c.cfg.Path, err)
}

func (c *Counter) read(ctx context.Context) (n int64, version int32, exists bool, err error) { //nolint:nonamedreturns // four values
	data, stat, err := c.s.Get(ctx, c.cfg.Path)
	if errors.Is(err, session.ErrNoNode) {
		return 0, 0, false, nil
	}
	if err == nil {
		n, err = c.decode(data)
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("counter %s: %w", c.cfg.Path, err)
	}
	return n, stat.Version, true, nil
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
	if len(data) == 0 {
		return 0, nil
	}
	switch {
	case c.cfg.Dialect == CounterText:
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		return n, nil
	case c.cfg.Dialect == CounterShared && len(data) == 4:
		return int64(int32(binary.BigEndian.Uint32(data))), nil //nolint:gosec // two's complement is the format
	case c.cfg.Dialect != CounterShared && len(data) == 8:
		return int64(binary.BigEndian.Uint64(data)), nil //nolint:gosec // two's complement is the format
	}
	return 0, fmt.Errorf("%w: %d bytes", ErrFormat, len(data))
}
