package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Bounds of what each agent tells the fleet.
const (
	fleetMax   = 1000            // bytes
	fleetEvery = 5 * time.Second // between two writes, but for a failure
)

// fleetStatus keeps the znode up to date: at most one write in five seconds,
// at once for a failure.
type fleetStatus struct {
	agent *Agent
	id    string

	made  fleet.Record // what the newest text was made of; only Run touches these
	turns int          // of the snapshot that it was made of
	data  string
}

// Run implements Unit.
func (f *fleetStatus) Run(ctx context.Context, s *session.Session, _ func(view.Update)) error {
	path := session.JoinPath(fleet.AgentsPath, f.id)
	if err := session.ValidatePath(path); err != nil {
		return err
	}
	select { // what every start waits for is no news
	case <-ctx.Done():
		return nil
	case <-s.Done():
		return context.Cause(s.Context())
	case <-f.agent.loop.ready:
	}
	var last string
	failing := false
	version := int32(-1) // of the znode, as this session left it; -1: not yet
	for {
		snap := f.agent.loop.snapshot.Load()
		data, failed := f.text(snap), snap.failed()
		if data != last {
			var err error
			if version, err = rewrite(ctx, s, path, []byte(data), version); err != nil {
				return fmt.Errorf("write fleet status: %w", err)
			}
			last, failing = data, failed
			if !f.rest(ctx, s, failing) {
				return nil
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		case <-snap.next:
		}
	}
}

// rest keeps the distance between two writes; a new failure ends it.
func (f *fleetStatus) rest(ctx context.Context, s *session.Session, failing bool) bool {
	timer := time.NewTimer(fleetEvery)
	defer timer.Stop()
	for {
		snap := f.agent.loop.snapshot.Load()
		if snap.failed() && !failing {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.Done():
			return false
		case <-timer.C:
			return true
		case <-snap.next:
		}
	}
}

// rewrite writes the znode: with one request when it is as this session left it, at
// version, for the whole fleet does so at each change. It returns the new version.
func rewrite(ctx context.Context, s *session.Session, path string, data []byte, version int32) (int32, error) {
	if version >= 0 {
		if st, err := s.Set(ctx, path, data, version); err == nil {
			return st.Version, nil
		}
	}
	return put(ctx, s, path, data)
}

// put writes the znode, which may be there from before in a resumed session,
// or as a rest of a former one. It returns its version.
func put(ctx context.Context, s *session.Session, path string, data []byte) (int32, error) {
	for {
		st, ok, err := s.Exists(ctx, path)
		if err != nil {
			return -1, err
		}
		var now session.Stat
		switch {
		case !ok:
			if err = s.CreateParents(ctx, path); err == nil {
				_, now, err = s.Create(ctx, path, data, session.Ephemeral)
			}
		case st.EphemeralOwner == s.ID():
			now, err = s.Set(ctx, path, data, -1)
		default:
			_, err = s.Multi(ctx, session.DeleteOp(path, st.Version), session.CreateOp(path, data, session.Ephemeral))
		}
		if err == nil {
			return now.Version, nil
		}
		again := errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNodeExists) || errors.Is(err, session.ErrUnknown) || errors.Is(err, session.ErrBadVersion)
		if !again || !pace.Sleep(ctx, 50*time.Millisecond) {
			return -1, err
		}
	}
}
