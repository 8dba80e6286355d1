package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// zkLedger is the ledger of a leader-only hook: one persistent znode at
// <election path>-ledger/<hook>. Every write is one multi with a check of the
// leader's own znode, so that a leader which was deposed without knowing it
// cannot write.
type zkLedger struct {
	s     *session.Session
	guard session.Op // check of the candidate's znode
	path  string

	version int32 // of the znode as last seen; -1: there is none
}

func (l *zkLedger) load(ctx context.Context) (record, error) {
	data, stat, err := l.s.Get(ctx, l.path)
	if errors.Is(err, session.ErrNoNode) {
		l.version = -1
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read ledger: %w", err)
	}
	l.version = stat.Version
	var r record
	if len(data) > 0 && json.Unmarshal(data, &r) != nil { // As an empty record it would run everything again.
		return record{}, errors.New("ledger is not valid JSON")
	}
	return r, nil
}

func (l *zkLedger) store(ctx context.Context, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	for {
		err := l.write(ctx, data)
		if !errors.Is(err, session.ErrUnknown) {
			return err
		}
		applied, err := l.applied(ctx, data)
		if err != nil || applied {
			return err
		}
	}
}

// write is one attempt. The parents of the first record are made only when they
// turn out to be missing: a failover pays for no request that it does not need.
func (l *zkLedger) write(ctx context.Context, data []byte) error {
	err := l.multi(ctx, data)
	m, failed := errors.AsType[*session.MultiError](err)
	if failed && m.Index == 1 && l.version < 0 && errors.Is(m.Err, session.ErrNoNode) {
		if err = l.s.CreateParents(ctx, l.path); err != nil {
			return fmt.Errorf("create parents of ledger: %w", err)
		}
		err = l.multi(ctx, data)
		m, failed = errors.AsType[*session.MultiError](err)
	}
	switch {
	case err == nil:
		l.version++
		return nil
	case failed && m.Index == 0 && errors.Is(m.Err, session.ErrNoNode):
		return errNotLeader
	case failed && (errors.Is(m.Err, session.ErrBadVersion) || errors.Is(m.Err, session.ErrNodeExists) || errors.Is(m.Err, session.ErrNoNode)):
		return errConflict
	}
	return fmt.Errorf("write ledger: %w", err)
}

// multi writes the record if the candidate's znode exists and the record is still
// the one that was read.
func (l *zkLedger) multi(ctx context.Context, data []byte) error {
	op := session.SetOp(l.path, data, l.version)
	if l.version < 0 {
		op = session.CreateOp(l.path, data, session.Persistent)
	}
	_, err := l.s.Multi(ctx, l.guard, op)
	return err
}

// applied finds out what became of a write whose reply was lost. A run names
// itself in what it writes, so equal bytes are ours.
func (l *zkLedger) applied(ctx context.Context, data []byte) (bool, error) {
	if err := l.s.Sync(ctx, l.path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return false, fmt.Errorf("sync ledger: %w", err)
	}
	got, stat, err := l.s.Get(ctx, l.path)
	switch {
	case errors.Is(err, session.ErrNoNode) && l.version < 0:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read ledger: %w", err)
	case bytes.Equal(got, data):
		l.version = stat.Version
		return true, nil
	case stat.Version == l.version:
		return false, nil
	}
	return false, errConflict
}

// ordered: the ledger stands where the states come from.
func (*zkLedger) ordered() bool { return true }
