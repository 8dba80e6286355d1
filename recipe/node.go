package recipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// The persistent node: a znode that stays for as long as its owner wants it,
// whatever happens to it.
//
//	<path>                          ephemeral, container, or with a TTL
//	<dir>/_c_<uuid>-<name><sequence>   of a sequential one
//
// Steps (Apache Curator's PersistentNode, with the ownership rules of this
// module): create it; when it exists already, see whose it is. This session's is
// kept, and its data set if it differs. Our own former session's is replaced in
// one multi(delete, create). Another live session's is waited for. A persistent
// one is a configuration error.
//
// The watch stands on the children, of which an ephemeral has none: it fires when
// the znode is deleted and not when we write it. A change of the data costs one
// request, at the version that we wrote last.
//
// A sequential node keeps the name that it got first, over all sessions. One with a
// TTL is written again after each third of it, and outlives a session by the TTL: a
// node at <path>/touch is Curator's PersistentTtlNode of <path>.
//
// Guarantees: within a session the znode is there, with the data of the newest
// SetData, except for the moments after somebody deleted it; a reconnect alone
// writes nothing; a znode of another live session is never deleted. A znode that
// somebody keeps deleting or changing is made again with a growing delay. When
// Run has returned, its znode is deleted, unless the session ended before or the
// configuration says Keep. Containers and znodes with a TTL are left to the server.
// Not guaranteed: that a persistent sequential znode goes when its process dies.

// NodeConfig describes a persistent node.
type NodeConfig struct {
	// Path is where the znode stands. A sequential one stands beside it, see
	// [Node.Path].
	Path string
	Data []byte
	// Mode is the kind of the znode; zero: session.Ephemeral. A plain persistent
	// znode needs no keeper.
	Mode session.Mode
	// Former is the id of this program's own previous session, 0 when not
	// known: a znode of that session is replaced at once, instead of being
	// waited for until the session expires.
	Former int64
	// Keep leaves the znode standing when the context of Run ends, for a
	// process that takes the session over.
	Keep bool
	// Blocked, if not nil, is called when another session's znode stands at
	// Path, and with nil when it does no longer. The error matches ErrHeld.
	// The callback must not block.
	Blocked func(error)
	// Owned, if not nil, is called with true when the znode has become this
	// session's, and with false when it is not any more, or is not kept any
	// more. The callback must not block.
	Owned  func(bool)
	ACL    []session.ACL
	Logger *slog.Logger // nil: discard
}

// Node keeps one znode. Run it once per session. Its other methods may
// be called from any goroutine.
type Node struct {
	cfg     NodeConfig
	wake    chan struct{} // size 1: SetData was called
	created chan struct{}
	once    sync.Once // closes created

	mu   sync.Mutex // guards what follows
	data []byte
	path string // of the znode; empty: a sequential one that was not created yet
}

// Delays before a node that somebody deleted or changed is made right again.
const (
	recreateFirst = 100 * time.Millisecond
	recreateLast  = 30 * time.Second
	recreateCalm  = time.Minute // a znode that lived so long begins anew
)

// NewNode returns a node. It does no I/O.
func NewNode(cfg NodeConfig) *Node {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg, data: bytes.Clone(cfg.Data), wake: make(chan struct{}, 1), created: make(chan struct{})}
	if cfg.Mode == 0 {
		n.cfg.Mode = session.Ephemeral
	}
	n.name("")
	return n
}

// Path returns the path of the znode; empty for a sequential one that does not
// exist yet.
func (n *Node) Path() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.path
}

// name notes the path of a sequential znode; empty: it has none.
func (n *Node) name(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.path = path; !n.cfg.Mode.Sequential() {
		n.path = n.cfg.Path
	}
}

// Created is closed when the znode has been there for the first time.
func (n *Node) Created() <-chan struct{} { return n.created }

// SetData replaces the data, now or when Run gets to it; of several, the newest
// counts. It never blocks.
func (n *Node) SetData(data []byte) {
	n.mu.Lock()
	n.data = bytes.Clone(data)
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// wanted returns the newest data.
func (n *Node) wanted() []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.data
}

// Run keeps the znode until ctx or the session ends. It returns nil when ctx is
// done, after the znode was deleted, and an error when it cannot go on in this
// session: the cause of the session's end, ErrInTheWay, or a refusal of the
// server. It may be run again in the next session.
func (n *Node) Run(ctx context.Context, s *session.Session) error {
	err := session.ValidatePath(n.cfg.Path)
	if err == nil {
		k := nodeKeeper{Node: n, s: s}
		err = k.run(ctx)
		k.blocked(nil)
		k.lose()
	}
	if ctx.Err() != nil && s.Context().Err() == nil {
		if !n.cfg.Keep {
			n.remove(s)
		}
		return nil
	}
	return fmt.Errorf("keep %s: %w", n.cfg.Path, err)
}

// remove deletes the znode, if the server would not.
func (n *Node) remove(s *session.Session) {
	path := n.Path()
	switch {
	case path == "", n.cfg.Mode == session.Container, n.cfg.Mode.TTL() > 0:
		return
	case n.cfg.Mode.Ephemeral():
		abandonOwned(s, path)
	default:
		abandon(s, path) // nobody else uses a protected name
	}
	n.name("")
}

// nodeKeeper is a node in one session.
type nodeKeeper struct {
	*Node
	s *session.Session

	mine    bool      // the znode is ours
	touched time.Time // we wrote it last
	since   time.Time // it has been ours since
	written []byte    // its data as we wrote or read it last
	version int32     // its version then; -1: not known
	back    time.Duration
	told    int64 // session that Blocked was told of; 0: none
}

// run looks, makes right what is wrong, and waits, again and again.
func (k *nodeKeeper) run(ctx context.Context) error {
	for {
		watch, err := k.look(ctx)
		if err != nil {
			return err
		}
		if watch == nil {
			continue // it is not what it was a moment ago
		}
		if err := k.await(ctx, watch); err != nil {
			return err
		}
	}
}

// look makes the znode what it should be and returns a watch on it; nil: look
// again.
func (k *nodeKeeper) look(ctx context.Context) (*session.Watch, error) {
	path := k.Path()
	if path == "" {
		return nil, k.create(ctx)
	}
	_, stat, watch, err := k.s.ChildrenW(ctx, path)
	if errors.Is(err, session.ErrNoAuth) { // an exists needs no permission
		var exists bool
		stat, exists, watch, err = k.s.ExistsW(ctx, path)
		if err == nil && !exists {
			watch.Stop()
			err = session.ErrNoNode
		}
	}
	switch {
	case errors.Is(err, session.ErrNoNode):
		return nil, k.create(ctx)
	case err != nil:
		return nil, err
	}
	switch owner := stat.EphemeralOwner; {
	case owner == k.owner():
		return k.refresh(ctx, stat, watch)
	case owner == 0:
		watch.Stop()
		return nil, ErrInTheWay
	case owner == k.cfg.Former && k.cfg.Mode.Ephemeral():
		watch.Stop()
		return nil, k.replace(ctx, stat)
	default:
		k.lose()
		k.blocked(&ownerError{path, owner})
		return watch, nil
	}
}

// owner is the session that our znode belongs to; 0: none.
func (k *nodeKeeper) owner() int64 {
	if k.cfg.Mode.Ephemeral() {
		return k.s.ID()
	}
	return 0
}

// ownerError says whose znode is in the way.
type ownerError struct {
	path  string
	owner int64
}

func (e *ownerError) Error() string {
	return fmt.Sprintf("%s belongs to session %#x", e.path, uint64(e.owner)) // #nosec G115 -- shown in hexadecimal
}

func (e *ownerError) Is(target error) bool { return target == ErrHeld }

// blocked tells once who is in the way, and once that nobody is.
func (k *nodeKeeper) blocked(by *ownerError) {
	var owner int64
	var err error
	if by != nil {
		owner, err = by.owner, by
	}
	if owner == k.told {
		return
	}
	k.told = owner
	if by != nil {
		k.cfg.Logger.Warn("the znode belongs to another session, waiting for it to leave", "path", by.path, "err", by)
	}
	if k.cfg.Blocked != nil {
		k.cfg.Blocked(err)
	}
}

// lose notes that the znode is not ours any more.
func (k *nodeKeeper) lose() {
	if k.mine && k.cfg.Owned != nil {
		k.cfg.Owned(false)
	}
	k.mine, k.written, k.version = false, nil, -1
}

// create creates the znode. When it was ours a moment ago, somebody deleted it:
// it is made again after a delay.
func (k *nodeKeeper) create(ctx context.Context) error {
	k.blocked(nil)
	if k.mine {
		k.lose()
		if err := k.delay(ctx); err != nil {
			return err
		}
	}
	data := k.wanted()
	parents := withParents
	if k.cfg.Mode.TTL() > 0 {
		parents = withContainers
	}
	err := parents(ctx, k.s, k.cfg.Path, func() error {
		path, stat, err := k.make(ctx, data)
		if err == nil && stat.EphemeralOwner == k.owner() {
			k.name(path)
			k.touched = time.Now()
			k.own(data, stat.Version)
		}
		return err
	})
	return k.unlessRace(ctx, err)
}

// make creates the znode: a sequential one under a new name the first time, and
// under the same name from then on.
func (k *nodeKeeper) make(ctx context.Context, data []byte) (string, session.Stat, error) {
	path, mode := k.Path(), k.cfg.Mode
	if path == "" {
		dir, name := session.SplitPath(k.cfg.Path)
		return k.s.CreateProtected(ctx, dir, name, data, mode, k.cfg.ACL...)
	}
	switch {
	case mode == session.EphemeralSequential:
		mode = session.Ephemeral
	case mode == session.PersistentSequential:
		mode = session.Persistent
	case mode.Sequential():
		mode = session.PersistentTTL(mode.TTL())
	}
	return k.s.Create(ctx, path, data, mode, k.cfg.ACL...)
}

// replace puts our znode in the place of our former session's, in one step.
func (k *nodeKeeper) replace(ctx context.Context, stat session.Stat) error {
	k.cfg.Logger.Info("replacing the znode of the former session", "path", k.Path(), "czxid", stat.Czxid)
	_, err := k.s.Multi(ctx,
		session.DeleteOp(k.Path(), stat.Version),
		session.CreateOp(k.Path(), k.wanted(), session.Ephemeral, k.cfg.ACL...))
	return k.unlessRace(ctx, err)
}

// unlessRace drops an error that the next look clears up: somebody was first, or
// the reply was lost.
func (k *nodeKeeper) unlessRace(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && isRace(err) {
		return nil
	}
	return err
}

// own notes what the znode is.
func (k *nodeKeeper) own(data []byte, version int32) {
	if !k.mine {
		k.since = time.Now()
		if k.cfg.Owned != nil {
			k.cfg.Owned(true)
		}
	}
	k.mine, k.written, k.version = true, data, version
	k.once.Do(func() { close(k.created) })
}

// refresh sets our data if the znode of ours holds other data.
func (k *nodeKeeper) refresh(ctx context.Context, stat session.Stat, watch *session.Watch) (*session.Watch, error) {
	k.blocked(nil)
	if k.mine && stat.Version == k.version {
		return watch, nil
	}
	foreign := k.mine && k.version >= 0
	data, stat, err := k.s.Get(ctx, k.Path())
	switch {
	case errors.Is(err, session.ErrNoAuth):
		data = nil // it may be written and not read
	case err != nil:
		watch.Stop()
		return nil, k.unlessRace(ctx, err)
	case stat.EphemeralOwner != k.owner():
		watch.Stop()
		return nil, nil
	}
	k.own(data, stat.Version)
	if foreign && !bytes.Equal(data, k.wanted()) {
		k.cfg.Logger.Warn("somebody else wrote this znode", "path", k.Path())
		if err := k.delay(ctx); err != nil {
			watch.Stop()
			return nil, err
		}
	}
	return watch, nil
}

// delay waits before the next try, longer each time.
func (k *nodeKeeper) delay(ctx context.Context) error {
	if time.Since(k.since) >= recreateCalm {
		k.back = 0
	}
	k.back = min(max(2*k.back, recreateFirst), recreateLast)
	return k.s.Sleep(ctx, k.back)
}

// await writes what is wanted, and returns when the znode is to be looked at.
func (k *nodeKeeper) await(ctx context.Context, watch *session.Watch) error {
	defer watch.Stop()
	for {
		if data := k.wanted(); k.mine && (!bytes.Equal(data, k.written) || k.stale() <= 0) {
			stat, err := k.s.Set(ctx, k.Path(), data, k.version)
			switch {
			case err == nil:
				k.touched = time.Now()
				k.own(data, stat.Version)
			case errors.Is(err, session.ErrUnknown):
				// Whether it was applied shows when the znode is read.
				k.version = -1
				return k.unlessRace(ctx, err)
			default:
				return k.unlessRace(ctx, err)
			}
		}
		if again, err := k.idle(ctx, watch); !again {
			return err
		}
	}
}

// idle waits until there is something to write, and then returns true, or to look at.
func (k *nodeKeeper) idle(ctx context.Context, watch *session.Watch) (bool, error) {
	timer := time.NewTimer(k.stale())
	defer timer.Stop()
	select {
	case <-k.wake:
		return true, nil
	case <-timer.C:
		return true, nil
	case <-watch.C():
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-k.s.Done():
		return false, context.Cause(k.s.Context())
	}
}

// noTTL is longer than a session is without a look.
const noTTL = 24 * time.Hour

// stale is how long it is until a znode with a TTL is to be written again: after a
// third of it.
func (k *nodeKeeper) stale() time.Duration {
	if ttl := k.cfg.Mode.TTL(); ttl > 0 && k.mine {
		return time.Until(k.touched.Add(ttl / 3))
	}
	return noTTL
}
