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

// The persistent ephemeral node: an ephemeral znode that stays for as long as
// its owner wants it, whatever happens to it.
//
//	<path>    ephemeral
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
// Guarantees: within a session the znode is there, with the data of the newest
// SetData, except for the moments after somebody deleted it; a reconnect alone
// writes nothing; a znode of another live session is never deleted. A znode that
// somebody keeps deleting or changing is made again with a growing delay. When
// Run has returned, its znode is deleted, unless the session ended before or the
// configuration says Keep.

// NodeConfig describes a persistent ephemeral node.
type NodeConfig struct {
	Path string
	Data []byte
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

// Node keeps one ephemeral znode. Run it once per session. Its other methods may
// be called from any goroutine.
type Node struct {
	cfg     NodeConfig
	wake    chan struct{} // size 1: SetData was called
	created chan struct{}
	once    sync.Once // closes created

	mu   sync.Mutex // guards data
	data []byte
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
	return &Node{cfg: cfg, data: bytes.Clone(cfg.Data), wake: make(chan struct{}, 1), created: make(chan struct{})}
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
			abandonOwned(s, n.cfg.Path)
		}
		return nil
	}
	return fmt.Errorf("keep %s: %w", n.cfg.Path, err)
}

// nodeKeeper is a node in one session.
type nodeKeeper struct {
	*Node
	s *session.Session

	mine    bool      // the znode is ours
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
	path := k.cfg.Path
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
	switch owner := stat.EphemeralOwner; owner {
	case 0:
		watch.Stop()
		return nil, ErrInTheWay
	case k.s.ID():
		return k.refresh(ctx, stat, watch)
	case k.cfg.Former:
		watch.Stop()
		return nil, k.replace(ctx, stat)
	default:
		k.lose()
		k.blocked(&ownerError{path, owner})
		return watch, nil
	}
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
	err := withParents(ctx, k.s, k.cfg.Path, func() error {
		_, stat, err := k.s.Create(ctx, k.cfg.Path, data, session.Ephemeral, k.cfg.ACL...)
		if err == nil && stat.EphemeralOwner == k.s.ID() {
			k.own(data, stat.Version)
		}
		return err
	})
	return k.unlessRace(ctx, err)
}

// replace puts our znode in the place of our former session's, in one step.
func (k *nodeKeeper) replace(ctx context.Context, stat session.Stat) error {
	k.cfg.Logger.Info("replacing the znode of the former session", "path", k.cfg.Path, "czxid", stat.Czxid)
	_, err := k.s.Multi(ctx,
		session.DeleteOp(k.cfg.Path, stat.Version),
		session.CreateOp(k.cfg.Path, k.wanted(), session.Ephemeral, k.cfg.ACL...))
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
	data, stat, err := k.s.Get(ctx, k.cfg.Path)
	switch {
	case errors.Is(err, session.ErrNoAuth):
		data = nil // it may be written and not read
	case err != nil:
		watch.Stop()
		return nil, k.unlessRace(ctx, err)
	case stat.EphemeralOwner != k.s.ID():
		watch.Stop()
		return nil, nil
	}
	k.own(data, stat.Version)
	if foreign && !bytes.Equal(data, k.wanted()) {
		k.cfg.Logger.Warn("somebody else wrote this znode", "path", k.cfg.Path)
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
		if data := k.wanted(); k.mine && !bytes.Equal(data, k.written) {
			stat, err := k.s.Set(ctx, k.cfg.Path, data, k.version)
			switch {
			case err == nil:
				k.own(data, stat.Version)
			case errors.Is(err, session.ErrUnknown):
				// Whether it was applied shows when the znode is read.
				k.version = -1
				return k.unlessRace(ctx, err)
			default:
				return k.unlessRace(ctx, err)
			}
		}
		select {
		case <-k.wake:
		case <-watch.C():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-k.s.Done():
			return context.Cause(k.s.Context())
		}
	}
}
