package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/session"
)

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
	Duration time.Duration // of a lease, in whole seconds
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
func NewLease(s *session.Session, cfg LeaseConfig) *Lease { return &Lease{s, cfg} }

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
