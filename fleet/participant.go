package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Host is what takes part in rollouts on one machine: the agent.
type Host interface {
	// Vote renders the tree with the host's own data into a staging area and
	// runs the checks, and changes nothing in use. An error is a vote for
	// abort; its text is shown to the proposer.
	Vote(ctx context.Context, tree *view.Tree) error
	// Show puts a tree into use that needs no turn, and does not wait.
	Show(tree *view.Tree)
	// Use puts the tree into use and returns when it is, checked and
	// reloaded; an error means that from (nil: nothing) is in use again, but for
	// ErrStopping: nobody knows, and the next life of the agent goes on.
	Use(ctx context.Context, tree, from *view.Tree) error
	// Back puts a tree into use that was in use before, and returns when it is,
	// or cannot be.
	Back(ctx context.Context, tree *view.Tree) error
}

// Planner is a Host that tells what a version would change, for dry runs.
type Planner interface {
	// Plan is Vote that also returns what would change, and with diff how.
	Plan(ctx context.Context, tree *view.Tree, diff bool) ([]FileChange, error)
}

// Version names a version of the tree. Without a digest only its number is known.
type Version struct {
	Number int64
	Digest string
	Delta  *config.Delta
}

// Config describes one host's part in the rollouts of one tree.
type Config struct {
	Root  string // root znode of the tree
	Agent string // agent id, unique in the fleet
	Host  Host
	// Tree reads a version of the tree, which never changes.
	Tree func(ctx context.Context, s *session.Session, v Version) (*view.Tree, error)
	// Life names this process, unlike any before and after it; empty: each
	// Participant is a life of its own.
	Life string
	// Maintenance tells why the host is in maintenance (empty: it is not), and
	// closes the channel when that changes. nil: it never is.
	Maintenance func() (string, <-chan struct{})
	// Owned tells whether the subscription is this session's: of two agents with
	// one id only one takes part. nil: it always is.
	Owned func() (bool, <-chan struct{})
	// NeverCoordinate keeps this host from standing for coordinator.
	NeverCoordinate bool
	Logger          *slog.Logger // nil: discard
}

// Participant votes on proposals, changes when it is granted its turn, and
// contends for the coordinator's part while a rollout is open. It is made once a
// process and run in one session after another.
type Participant struct {
	cfg Config
	log *slog.Logger
	// offers holds the newest tree that ready names; only the newest counts.
	offers chan *view.Tree

	// What follows is of the goroutine of Run. inUse is the version in use in
	// this process; 0: none yet. ended is a turn that has come to an end and is
	// not recorded yet.
	inUse int64
	ended *ending
	ready *view.Tree
}

// ending is how a turn ended.
type ending struct {
	rollout string
	record  HostRecord
}

// New returns a participant. It does no I/O.
func New(cfg Config) *Participant {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Life == "" {
		cfg.Life = rand.Text()
	}
	if cfg.Maintenance == nil {
		cfg.Maintenance = func() (string, <-chan struct{}) { return "", nil }
	}
	if cfg.Owned == nil {
		cfg.Owned = func() (bool, <-chan struct{}) { return true, nil }
	}
	return &Participant{cfg: cfg, log: log, offers: make(chan *view.Tree, 1)}
}

// Offer hands over the tree that ready names now, as config.Watcher sends it.
// It does not block: an older offer that was not taken yet is forgotten. Only
// one goroutine may offer at a time.
func (p *Participant) Offer(tree *view.Tree) {
	select {
	case <-p.offers:
	default:
	}
	select {
	case p.offers <- tree:
	default:
	}
}

// Run takes part until ctx or the session ends. It returns an error only when
// it cannot go on in this session.
func (p *Participant) Run(ctx context.Context, s *session.Session) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	calls := make(chan Call, 1) // the newest, for the election
	var wg sync.WaitGroup
	wg.Go(func() { p.standForCalls(ctx, s, calls) })
	h := &host{p: p, s: s, calls: calls, ready: p.ready}
	err := h.run(ctx)
	p.ready = h.ready
	cancel(nil)
	wg.Wait()
	if err != nil && !errors.Is(err, context.Canceled) && s.Context().Err() == nil {
		return err
	}
	return nil
}
