package recipe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/session"
)

// Delays before Run restores a node that another client deleted or changed, and before
// it tries again what the server refused.
const (
	recreateFirst = 100 * time.Millisecond
	recreateLast  = 30 * time.Second // also the first delay after a permanent error
	recreateCalm  = time.Minute      // the delay starts over after a znode lived so long
)

// errLookAgain means that the znode has changed since Run read it.
var errLookAgain = errors.New("look again")

// nodeKeeper is a node in one session. It compares the wanted state with the current
// one, again and again. Only its own goroutine uses it.
type nodeKeeper struct {
	*Node
	s     *session.Session
	state keeper.State

	version int32         // of the znode's data, as last written or read; -1: unknown
	former  *session.Stat // the znode is of a previous session of ours
	watch   *session.Watch
	conn    uint64    // connection when the watch was set
	again   time.Time // when to look without an event
	touched time.Time // when we wrote it last
	since   time.Time // since when it is ours, or as we want it

	notBefore time.Time // splay, back-off
	began     time.Time // the step
	back      time.Duration
	reported  keeper.State // the state that the callbacks were last called with
}

func (k *nodeKeeper) run(ctx context.Context) error {
	if k.version = -1; k.cfg.Internal.Sequence != nil {
		k.name("") // it went with its session
	}
	k.state.Path = k.Path()
	k.notBefore = time.Now().Add(k.cfg.Internal.Control.First)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer func() { // it is no longer owned or blocked
		k.unwatch()
		k.state.Owned, k.state.Blocked = false, nil
		k.reportEdges()
	}()
	for {
		next, err := k.step(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case k.s.Context().Err() != nil:
			return context.Cause(k.s.Context())
		case errors.Is(err, errLookAgain):
			continue
		case err != nil && k.simple:
			return err
		}
		timer.Reset(k.pause(next))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-k.s.Done():
			return context.Cause(k.s.Context())
		case <-k.wake:
		case <-k.cfg.Internal.Control.Wake:
		case <-k.watched():
			k.fired()
		case <-timer.C:
			k.recheck(ctx)
		}
	}
}

// recheck looks without an event when it is time. It forgets a znode that has changed.
func (k *nodeKeeper) recheck(ctx context.Context) {
	if k.watch == nil || time.Now().Before(k.again) {
		return
	}
	k.again = time.Now().Add(session.RecheckAfter())
	stat, exists, err := k.s.Exists(ctx, k.state.Path)
	same := exists && k.state.Owned && stat.EphemeralOwner == k.owner() && stat.Version == k.version
	if err == nil && !same {
		k.fired()
	}
}

// step brings the znode to the wanted state and reports its state to the callbacks. It
// returns when the next step is due without an event.
func (k *nodeKeeper) step(ctx context.Context) (time.Time, error) {
	k.began = time.Now()
	want, err := k.reconcile(ctx)
	if err != nil && isRace(err) {
		lost := errors.Is(err, session.ErrUnknown)
		err = errLookAgain
		if lost { // the znode shows whether the request was applied, but a server may lag
			dir, _ := session.SplitPath(k.cfg.Path)
			if serr := k.s.Sync(ctx, dir); serr != nil && !errors.Is(serr, session.ErrNoNode) {
				err = fmt.Errorf("sync after a lost reply: %w", serr)
			}
		}
	}
	if ctx.Err() != nil || k.s.Context().Err() != nil {
		return time.Time{}, err
	}
	k.state.Err = nil
	switch {
	case err == nil:
		k.calm()
	case errors.Is(err, errLookAgain):
		k.forget()
	default:
		k.forget()
		k.state.Err, k.state.Blocked = err, nil
		k.delay(session.ActionFor(err) == session.GiveUp)
		if !k.simple {
			k.cfg.Logger.Warn("cannot create or update the znode; retrying", "path", k.cfg.Path, "err", err, "retry_in", k.back)
		}
	}
	k.reportEdges()
	k.cfg.Internal.Control.Changed(k.state)
	// What the callback learned may bring the next step forward.
	if w, werr := k.cfg.Internal.Control.Want(k.state); werr == nil && !w.Next.IsZero() && (want.Next.IsZero() || w.Next.Before(want.Next)) {
		want.Next = w.Next
	}
	return want.Next, err
}

// reportEdges calls the callbacks whose state has changed.
func (k *nodeKeeper) reportEdges() {
	was, is := k.reported, k.state
	k.reported = is
	if fmt.Sprint(was.Blocked) != fmt.Sprint(is.Blocked) {
		if is.Blocked != nil {
			k.cfg.Logger.Warn("another znode is in the way, waiting until it is gone", "path", is.Path, "err", is.Blocked)
		}
		if k.cfg.Blocked != nil {
			k.cfg.Blocked(is.Blocked)
		}
	}
	if was.Owned != is.Owned && k.cfg.Owned != nil {
		k.cfg.Owned(is.Owned)
	}
	if is.Owned {
		k.once.Do(func() { close(k.created) })
	}
}

func (k *nodeKeeper) pause(next time.Time) time.Duration {
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if ttl := k.cfg.Mode.TTL(); ttl > 0 && k.state.Owned {
		sooner(k.touched.Add(ttl / 3))
	}
	if k.notBefore.After(k.began) { // also when it has passed meanwhile: the step may have waited for it
		sooner(k.notBefore)
	}
	if k.watch != nil {
		sooner(k.again)
	}
	if next.IsZero() {
		return time.Hour
	}
	return max(time.Until(next), 0)
}

func (k *nodeKeeper) watched() <-chan struct{} {
	if k.watch == nil {
		return nil
	}
	return k.watch.C()
}

// fired forgets the state of the znode. After a reconnect it delays the next look by
// the splay, so that the nodes of this process do not all look at once.
func (k *nodeKeeper) fired() {
	k.calm()
	k.forget()
	if k.state.Owned && k.conn != k.s.Connection() {
		k.notBefore = time.Now().Add(k.cfg.Internal.Control.Splay)
	}
}

func (k *nodeKeeper) forget() {
	k.unwatch()
	k.state.Known = false
}

func (k *nodeKeeper) unwatch() {
	k.watch.Stop()
	k.watch = nil
}

// calm resets the delay when the znode has existed for long.
func (k *nodeKeeper) calm() {
	if k.state.Owned && time.Since(k.since) >= recreateCalm {
		k.back = 0
	}
}

// delay postpones the next try, each time for longer.
func (k *nodeKeeper) delay(permanent bool) {
	k.back = min(max(2*k.back, recreateFirst), recreateLast)
	if permanent {
		k.back = recreateLast
	}
	k.notBefore = time.Now().Add(k.back)
}

// held reports whether a delay postpones the action. A splay does not postpone a
// removal.
func (k *nodeKeeper) held(w keeper.Want) bool {
	return time.Now().Before(k.notBefore) && !w.Now && (!w.Absent || k.back > 0)
}

// reconcile brings the znode from its current to the wanted state. It returns at the
// first error.
func (k *nodeKeeper) reconcile(ctx context.Context) (keeper.Want, error) {
	w, err := k.cfg.Internal.Control.Want(k.state)
	if err != nil || k.held(w) {
		return w, err
	}
	if !k.state.Known {
		if err := k.look(ctx); err != nil {
			return w, err
		}
		// The answer may depend on the znode that was found, and on the time.
		if w, err = k.cfg.Internal.Control.Want(k.state); err != nil || k.held(w) {
			return w, err
		}
	}
	switch mine := k.state.Owned; {
	case w.Absent && mine:
		return w, k.remove(ctx)
	case w.Absent:
		k.state.Blocked = nil
	case k.state.Blocked != nil: // its watch says when it is out of the way
	case k.former != nil:
		return w, k.replace(ctx, w.Data)
	case !mine:
		return w, k.create(ctx, w.Data)
	case !bytes.Equal(k.state.Data, w.Data), k.stale():
		return w, k.set(ctx, w.Data)
	}
	return w, nil //nolint:nilerr // Blocked is a state; its watch says when it ends
}

func (k *nodeKeeper) look(ctx context.Context) error {
	k.unwatch()
	was := k.state.Owned
	if k.state.Path == "" {
		path, err := k.Find(ctx, k.s)
		if err != nil {
			return err
		}
		k.at(path)
	}
	k.state.Blocked, k.former = nil, nil
	if k.state.Path == "" {
		k.state.Known = true
		return nil
	}
	data, stat, watch, err := k.read(ctx)
	if errors.Is(err, session.ErrNoNode) {
		if was { // Another client has deleted it: Run makes it again after a delay, which grows each time.
			k.delay(false)
			k.cfg.Logger.Warn("somebody else deleted this znode", "path", k.state.Path, "retry_in", k.back)
		}
		k.lose()
		return nil
	}
	if err != nil {
		return err
	}
	k.watch, k.conn, k.state.Known, k.state.Owned = watch, k.s.Connection(), true, false
	k.again = time.Now().Add(session.RecheckAfter())
	switch owner := stat.EphemeralOwner; {
	case owner == k.owner():
		k.found(data, stat, was)
	case k.cfg.Internal.Sequence != nil: // of a previous session: it goes by itself
		k.at("")
		return errLookAgain
	case k.cfg.Mode.Ephemeral() && slices.Contains(k.cfg.Internal.Earlier, owner):
		k.former = &stat
	case owner == 0 && k.simple:
		return ErrInTheWay
	case owner == 0:
		k.state.Blocked = ErrInTheWay
	default:
		k.state.Blocked = &ownerError{k.state.Path, owner}
	}
	return nil
}

// read returns the znode with a watch. Without a control it reads the data only when
// another client may have written it. The data is nil when we may not read it.
func (k *nodeKeeper) read(ctx context.Context) ([]byte, session.Stat, *session.Watch, error) {
	path := k.state.Path
	if !k.simple {
		return k.s.GetW(ctx, path)
	}
	_, stat, watch, err := k.s.ChildrenW(ctx, path)
	if errors.Is(err, session.ErrNoAuth) {
		stat, watch, err = existsW(ctx, k.s, path)
	}
	if err != nil || stat.EphemeralOwner != k.owner() {
		return nil, stat, watch, err
	}
	if k.state.Owned && stat.Version == k.version && stat.Czxid == k.state.Czxid {
		return k.state.Data, stat, watch, nil
	}
	data, now, err := k.s.Get(ctx, path)
	switch {
	case errors.Is(err, session.ErrNoAuth): // it may be written and not read
		return nil, stat, watch, nil
	case err != nil:
		watch.Stop()
	}
	return data, now, watch, err
}

// found handles a znode that this session owns.
func (k *nodeKeeper) found(data []byte, stat session.Stat, was bool) {
	switch {
	case !was || k.state.Czxid != 0 && stat.Czxid != k.state.Czxid:
		k.state.Adopted, k.since = true, time.Now()
	case k.version >= 0 && stat.Version != k.version && !bytes.Equal(data, k.state.Data):
		// Another node of this session has the same path, or an operator wrote.
		k.since = time.Now()
		k.delay(false)
		k.cfg.Logger.Warn("somebody else wrote this znode", "path", k.state.Path, "retry_in", k.back)
	}
	k.own(data, stat)
}

func (k *nodeKeeper) own(data []byte, stat session.Stat) {
	k.state.Owned, k.state.Data, k.state.Czxid, k.version = true, data, stat.Czxid, stat.Version
}

func (k *nodeKeeper) lose() {
	k.state.Owned, k.state.Adopted, k.state.Data, k.state.Czxid, k.version = false, false, nil, 0, -1
	if k.cfg.Internal.Sequence != nil {
		k.at("")
	}
	k.state.Known = true
}

func (k *nodeKeeper) at(path string) {
	k.name(path)
	k.state.Path = k.Path()
}

// owner returns the session that owns our znode; 0 for a znode that is not ephemeral.
func (k *nodeKeeper) owner() int64 {
	if k.cfg.Mode.Ephemeral() {
		return k.s.ID()
	}
	return 0
}

// stale reports whether to write a znode with a TTL again: after a third of the TTL.
func (k *nodeKeeper) stale() bool {
	ttl := k.cfg.Mode.TTL()
	return ttl > 0 && time.Since(k.touched) >= ttl/3
}

// create makes the znode. The look that follows sets the watch.
func (k *nodeKeeper) create(ctx context.Context, data []byte) error {
	parents := withParents
	if k.cfg.Mode.TTL() > 0 {
		parents = withContainers
	}
	return parents(ctx, k.s, k.cfg.Path, func() error {
		path, stat, err := k.make(ctx, data)
		if k.cfg.Internal.Sequence != nil && errors.Is(err, session.ErrNodeExists) {
			return fmt.Errorf("create %s: %w", k.cfg.Path, ErrSequence)
		}
		if err != nil {
			return err
		}
		// A request that was queued during an expiry runs in the next session.
		if stat.EphemeralOwner == k.owner() {
			k.at(path)
			k.state.Adopted, k.since, k.touched = false, time.Now(), time.Now()
			k.own(data, stat)
		}
		return errLookAgain
	})
}

// make creates the znode. A sequential znode gets a new name the first time, and the
// same name from then on.
func (k *nodeKeeper) make(ctx context.Context, data []byte) (string, session.Stat, error) {
	path, mode := k.state.Path, k.cfg.Mode
	switch {
	case k.cfg.Internal.Sequence != nil:
		path = k.cfg.Path
	case path == "":
		dir, name := session.SplitPath(k.cfg.Path)
		return k.s.CreateProtected(ctx, dir, name, data, mode, k.cfg.ACL...)
	case mode == session.EphemeralSequential:
		mode = session.Ephemeral
	case mode == session.PersistentSequential:
		mode = session.Persistent
	case mode.Sequential():
		mode = session.PersistentTTL(mode.TTL())
	}
	return k.s.Create(ctx, path, data, mode, k.cfg.ACL...)
}

// replace puts our znode in the place of our previous session's, in one step. A server
// compares versions only, so the set shows which znode it was. One that another session has
// made meanwhile gets its name back.
func (k *nodeKeeper) replace(ctx context.Context, data []byte) error {
	path, was := k.state.Path, k.former.Czxid
	k.cfg.Logger.Info("replacing the znode of the previous session", "path", path, "czxid", was)
	results, err := k.s.Multi(ctx, session.SetOp(path, data, k.former.Version), session.DeleteOp(path, -1),
		session.CreateOp(path, data, session.Ephemeral, k.cfg.ACL...))
	if err != nil {
		return err
	}
	if results[0].Stat.Czxid != was {
		k.cfg.Logger.Warn("another session has this znode, and gets it back", "path", path)
		k.lose()
		k.delay(true)
		return cmp.Or(removeExactly(ctx, k.s, path, results[2].Stat.Czxid), errLookAgain)
	}
	k.state.Adopted, k.since = false, time.Now()
	k.own(data, session.Stat{Version: -1}) // the next look completes it
	return errLookAgain
}

func (k *nodeKeeper) set(ctx context.Context, data []byte) error {
	stat, err := k.s.Set(ctx, k.state.Path, data, k.version)
	switch {
	case errors.Is(err, session.ErrUnknown):
		k.version = -1
	case err == nil && k.state.Czxid != 0 && stat.Czxid != k.state.Czxid:
		return errLookAgain // it may be another session's, which sees that its data changed
	case err == nil:
		k.touched = time.Now()
		k.own(data, stat)
	}
	return err
}

func (k *nodeKeeper) remove(ctx context.Context) error {
	k.unwatch()
	err := k.s.Delete(ctx, k.state.Path, k.version)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		// If it is gone after an unknown outcome, we have deleted it ourselves.
		k.state.Owned = !errors.Is(err, session.ErrUnknown)
		return err
	}
	k.lose()
	return nil
}

// ownerError names the session whose znode is in the way.
type ownerError struct {
	path  string
	owner int64
}

func (e *ownerError) Error() string {
	return fmt.Sprintf("%s belongs to session %#x", e.path, uint64(e.owner)) // #nosec G115 -- shown in hexadecimal
}

func (e *ownerError) Is(target error) bool { return target == ErrHeld }
