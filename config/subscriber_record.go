package config

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/session"
)

// ownRecord is a subscriber's znode as its session knows it. Reports come with
// every publish, on every host, so each costs one request: the watch stands on
// the znode's children, of which an ephemeral has none; it tells of the
// deletion, and is not used up by our own writes.
type ownRecord struct {
	subscriber *Subscriber
	path       string

	mine    bool   // the znode is there, and this session's
	written string // what it says; empty: not known
	version int32  // of the znode, for the next write
}

// keep makes the znode exist and say what is to be said, and returns the watch
// on its deletion; nil: look again at once.
func (o *ownRecord) keep(ctx context.Context, s *session.Session) (*session.Watch, error) {
	_, st, watch, err := s.ChildrenW(ctx, o.path)
	o.mine = err == nil && st.EphemeralOwner == s.ID()
	o.subscriber.own(o.mine)
	if errors.Is(err, session.ErrNoNode) {
		return nil, o.create(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if !o.mine {
		o.subscriber.log.Warn("another session has the subscription of this agent, waiting for it to go", "owner", st.EphemeralOwner)
		return watch, nil
	}
	if st.Version != o.version {
		o.written, o.version = "", st.Version
	}
	again, err := o.write(ctx, s)
	if err == nil && !again {
		return watch, nil
	}
	watch.Stop()
	if again {
		o.subscriber.again()
	}
	return nil, err
}

// create creates the znode; how that ended shows in the next look.
func (o *ownRecord) create(ctx context.Context, s *session.Session) error {
	data := o.subscriber.data()
	err := s.CreateParents(ctx, o.path)
	if err == nil {
		_, _, err = s.Create(ctx, o.path, data, session.Ephemeral)
	}
	o.written, o.version = "", 0
	switch {
	case err == nil:
		o.written = string(data)
	case !raced(err):
		return fmt.Errorf("subscribe: %w", err)
	}
	o.subscriber.again()
	return nil
}

// write makes the znode say what is to be said; again: it is not what it was.
func (o *ownRecord) write(ctx context.Context, s *session.Session) (bool, error) {
	data := o.subscriber.data()
	if o.written == "" {
		have, st, err := s.Get(ctx, o.path)
		if err != nil {
			return raced(err), unlessRaced(err)
		}
		o.written, o.version = string(have), st.Version
	}
	if o.written == string(data) {
		return false, nil
	}
	st, err := s.Set(ctx, o.path, data, o.version)
	if err != nil {
		o.written = ""
		return raced(err), unlessRaced(err)
	}
	o.written, o.version = string(data), st.Version
	return false, nil
}

// pause waits until there is something to look at, and writes what is reported
// meanwhile.
func (o *ownRecord) pause(ctx context.Context, s *session.Session, watch *session.Watch) error {
	defer watch.Stop()
	var fired <-chan struct{}
	if watch != nil {
		fired = watch.C()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	waiting := false
	for {
		select {
		case <-o.subscriber.signal:
			if watch == nil || !o.mine {
				return nil
			}
			// What is reported while a report waits goes with it.
			if d := o.subscriber.delay(); d == 0 || !waiting {
				timer.Reset(d)
				waiting = true
			}
		case <-timer.C:
			timer.Reset(time.Hour)
			if !waiting {
				continue
			}
			waiting = false
			if again, err := o.write(ctx, s); err != nil || again {
				if again {
					o.subscriber.again()
				}
				return err
			}
		case <-fired:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Done():
			return context.Cause(s.Context())
		}
	}
}

// raced reports whether the error means no more than that the znode changed
// under our hands, or that we do not know what became of it.
func raced(err error) bool {
	return errors.Is(err, session.ErrNodeExists) || errors.Is(err, session.ErrNoNode) ||
		errors.Is(err, session.ErrUnknown) || errors.Is(err, session.ErrBadVersion)
}

func unlessRaced(err error) error {
	if raced(err) {
		return nil
	}
	return fmt.Errorf("subscribe: %w", err)
}
