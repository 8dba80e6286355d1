package recipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/zkagent/zkagent/session"
)

// The persistent ephemeral node: an ephemeral znode that stays for as long as
// its owner wants it, whatever happens to it.
//
//	<path>    ephemeral
//
// Steps (Apache Curator's PersistentNode, with the ownership rules of this
// module): create it; when it exists already, see whose it is: this session's is
// kept (and its data set if it differs), our own former session's is replaced
// in one multi(delete, create), somebody else's is waited for, and a persistent
// one is a configuration error. A watch on it tells when to look again.
//
// Guarantees: within a session the znode is there, with the data of the newest
// SetData, except for the moments after somebody deleted it; a reconnect alone
// writes nothing; a znode of a foreign session is never deleted. When Run has
// returned, its znode is deleted, unless the session ended before.

// NodeConfig describes a persistent ephemeral node.
type NodeConfig struct {
	Path string
	Data []byte
	// Former is the id of this program's own previous session, 0 when not
	// known: a znode of that session is replaced at once, instead of being
	// waited for until the session expires.
	Former int64
	ACL    []session.ACL
	Logger *slog.Logger // nil: discard
}

// Node keeps one ephemeral znode. Run it once per session.
type Node struct {
	cfg  NodeConfig
	data chan []byte
	up   chan struct{}
}

// recreateDelay paces the re-creation of a znode that somebody keeps deleting.
const recreateDelay = 100 * time.Millisecond

// NewNode returns a node. It does no I/O.
func NewNode(cfg NodeConfig) *Node {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Node{cfg: cfg, data: make(chan []byte, 1), up: make(chan struct{})}
}

// Created is closed when the znode has been there for the first time.
func (n *Node) Created() <-chan struct{} { return n.up }

// SetData replaces the data, now or when Run gets to it; of several, the newest
// counts. It never blocks. It must not be called by two goroutines at once.
func (n *Node) SetData(data []byte) {
	select {
	case <-n.data:
	default:
	}
	n.data <- bytes.Clone(data)
}

// Run keeps the znode until ctx or the session ends. It returns nil when ctx is
// done, after the znode was deleted, and an error when it cannot go on in this
// session: the cause of the session's end, ErrInTheWay, or a refusal of the
// server. It may be run again in the next session.
func (n *Node) Run(ctx context.Context, s *session.Session) error {
	err := n.keep(ctx, s)
	if ctx.Err() != nil && s.Context().Err() == nil {
		abandonOwned(s, n.cfg.Path)
		return nil
	}
	return fmt.Errorf("keep %s: %w", n.cfg.Path, err)
}

// keep is the loop: look, make right what is wrong, wait.
func (n *Node) keep(ctx context.Context, s *session.Session) error {
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		select { // the newest data, before anything is written
		case n.cfg.Data = <-n.data:
		default:
		}
		stat, exists, watch, err := s.ExistsW(ctx, n.cfg.Path)
		if err != nil {
			return err
		}
		if !exists {
			watch.Stop()
			if err := wait(ctx, s, pace.C); err != nil {
				return err
			}
			pace.Reset(recreateDelay)
			if err := n.create(ctx, s); err != nil {
				return err
			}
			continue
		}
		if err := n.own(ctx, s, stat); err != nil {
			watch.Stop()
			return err
		}
		if err := n.await(ctx, s, watch); err != nil {
			return err
		}
	}
}

// create creates the znode. That somebody was first, or that the outcome is
// unknown, is for the next look.
func (n *Node) create(ctx context.Context, s *session.Session) error {
	err := withParents(ctx, s, n.cfg.Path, func() error {
		_, _, err := s.Create(ctx, n.cfg.Path, n.cfg.Data, session.Ephemeral, n.cfg.ACL...)
		return err
	})
	if err != nil && (ctx.Err() != nil || !isRace(err)) {
		return err
	}
	return nil
}

// own makes an existing znode ours, as far as it may be.
func (n *Node) own(ctx context.Context, s *session.Session, stat session.Stat) error {
	var err error
	switch stat.EphemeralOwner {
	case 0:
		return ErrInTheWay
	case s.ID():
		err = n.refresh(ctx, s)
	case n.cfg.Former:
		n.cfg.Logger.Info("replacing the znode of the former session", "path", n.cfg.Path, "czxid", stat.Czxid)
		_, err = s.Multi(ctx,
			session.DeleteOp(n.cfg.Path, stat.Version),
			session.CreateOp(n.cfg.Path, n.cfg.Data, session.Ephemeral, n.cfg.ACL...))
	default:
		n.cfg.Logger.Warn("the znode belongs to another session, waiting for it to leave",
			"path", n.cfg.Path, "owner", fmt.Sprintf("%#x", stat.EphemeralOwner))
	}
	if err != nil && (ctx.Err() != nil || !isRace(err)) {
		return err
	}
	return nil
}

// refresh sets our data if the znode holds other data.
func (n *Node) refresh(ctx context.Context, s *session.Session) error {
	select {
	case <-n.up:
	default:
		close(n.up)
	}
	data, stat, err := s.Get(ctx, n.cfg.Path)
	if errors.Is(err, session.ErrNoNode) || err == nil && (bytes.Equal(data, n.cfg.Data) || stat.EphemeralOwner != s.ID()) {
		return nil
	}
	if err == nil || errors.Is(err, session.ErrNoAuth) {
		_, err = s.Set(ctx, n.cfg.Path, n.cfg.Data, -1)
	}
	return err
}

// await returns when the znode or the wanted data may have changed.
func (n *Node) await(ctx context.Context, s *session.Session, watch *session.Watch) error {
	defer watch.Stop()
	select {
	case n.cfg.Data = <-n.data:
		return nil
	case <-watch.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return context.Cause(s.Context())
	}
}

// wait returns when c is ready to be received from.
func wait[T any](ctx context.Context, s *session.Session, c <-chan T) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return context.Cause(s.Context())
	}
}
