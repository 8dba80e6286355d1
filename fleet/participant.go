package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Host is the agent's side of a rollout on one machine.
type Host interface {
	// Vote renders the tree with the host's own data and runs the checks in a preview.
	// It changes no file. An error is a vote for abort, and the proposer sees its text.
	// An error that matches ErrCheckNotRun is a vote for commit, and everybody sees that
	// the host could not run a check.
	Vote(ctx context.Context, tree *view.Tree) error
	// Show puts a tree into use without a turn. It does not wait.
	Show(tree *view.Tree)
	// Use puts the tree into use, with checks and reload, and returns when that is
	// done. After an error the tree from is in use again (nil: none). After
	// ErrStopping the state is unknown, and the next process of the agent
	// continues.
	Use(ctx context.Context, tree, from *view.Tree) error
	// Back puts an earlier tree into use again. It returns when that has succeeded
	// or failed.
	Back(ctx context.Context, tree *view.Tree) error
}

// ErrCheckNotRun says that a host has nothing against a version and could not run all
// checks before it uses the version.
var ErrCheckNotRun = errors.New("check not run")

// Planner is a Host that can report the changes that a version would make, for dry runs.
type Planner interface {
	// Plan is like Vote and also returns the files that would change, with their
	// diffs if diff is set.
	Plan(ctx context.Context, tree *view.Tree, diff bool) ([]FileChange, error)
}

// Version names a version of the tree. The digest may be missing.
type Version struct {
	Number int64
	Digest string
	Delta  *trees.Delta
}

// Config describes one host's part in the rollouts of one tree.
type Config struct {
	Root  string // root znode of the tree
	Agent string // agent id, unique in the fleet
	Host  Host
	// Tree reads a version of the tree, which never changes.
	Tree func(ctx context.Context, s *session.Session, v Version) (*view.Tree, error)
	// Life is a unique name of this process. If it is empty, each Participant
	// counts as its own process.
	Life string
	// Maintenance returns the reason of the host's maintenance, empty when it is
	// not in maintenance. The channel is closed when that changes. nil: the host is
	// never in maintenance.
	Maintenance func() (string, <-chan struct{})
	// InUse is the version that an earlier Participant of this host had in use; 0: not
	// known. A host in maintenance keeps it.
	InUse int64
	// Owned reports whether this session owns the subscription. Of two agents with
	// one id, only the owner takes part. nil: this session always owns it.
	Owned func() (bool, <-chan struct{})
	// NeverCoordinate keeps this host from standing for coordinator.
	NeverCoordinate bool
	// BakeCheck returns the check that this host runs as coordinator while a version
	// bakes; nil, also as its result: none.
	BakeCheck func() *BakeCheck
	// Halted receives, while this host coordinates a rollout, why the rollout waits for an
	// operator, and since when; empty: it does not. nil: nobody wants to know.
	Halted func(why string, since time.Time)
	Logger *slog.Logger // nil: discard
}

// Participant votes on proposals, changes the host when the coordinator grants its
// turn, and is a candidate for coordinator while a rollout is open. Create it once
// per process and run it in one session after another.
type Participant struct {
	cfg    Config
	log    *slog.Logger
	window func(hosts int) time.Duration // VoteWindow
	keep   int                           // keepRecords
	// offers holds the latest tree that ready names; only the latest counts.
	offers chan *view.Tree

	// Only the goroutine of Run touches the fields below. inUse is the version in
	// use in this process (0: none yet). ended is a finished turn that is not
	// recorded yet.
	inUse int64
	ended *ending
	ready *view.Tree
}

type ending struct {
	rollout string
	record  HostRecord
}

// New returns a participant. It does no I/O.
func New(cfg Config) *Participant {
	cfg.Life = cmp.Or(cfg.Life, uuid.NewString())
	if cfg.Maintenance == nil {
		cfg.Maintenance = func() (string, <-chan struct{}) { return "", nil }
	}
	if cfg.BakeCheck == nil {
		cfg.BakeCheck = func() *BakeCheck { return nil }
	}
	if cfg.Halted == nil {
		cfg.Halted = func(string, time.Time) {}
	}
	if cfg.Owned == nil {
		cfg.Owned = func() (bool, <-chan struct{}) { return true, nil }
	}
	return &Participant{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), window: VoteWindow, keep: keepRecords, offers: make(chan *view.Tree, 1)}
}

// Offer passes the tree that ready names now, as config.Watcher sends it. It does
// not block; a new offer replaces one that Run has not taken. Only one goroutine
// may call Offer at a time.
func (p *Participant) Offer(tree *view.Tree) {
	replace(p.offers, tree)
}

// replace puts v into a channel of size 1 with one sender, instead of what is there.
func replace[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

// Run takes part in rollouts until ctx or the session ends. It returns an error
// only when it cannot continue in this session.
func (p *Participant) Run(ctx context.Context, s *session.Session) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.cfg.Halted("", time.Time{})    // the previous session coordinates no more
	calls := make(chan shardCall, 1) // the latest, for the election
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

// The election of the coordinator. A hash of the rollout and the host chooses a few
// hosts, which become candidates at once. The other hosts check now and then, and
// become candidates when too few are left.
const (
	firstCandidates = 7
	restCandidates  = 448
	fewCandidates   = 3
)

// standForCalls makes this host a candidate for the rollout of the latest call.
func (p *Participant) standForCalls(ctx context.Context, s *session.Session, calls <-chan shardCall) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case call := <-calls:
			stop()
			wg.Wait()
			standing, cancel := context.WithCancel(ctx)
			stop = cancel
			wg.Go(func() {
				if err := p.stand(standing, s, call); err != nil && standing.Err() == nil && s.Context().Err() == nil {
					p.log.Warn("not standing for coordinator", "rollout", call.Rollout, "err", err)
				}
			})
		case <-ctx.Done():
			return
		case <-s.Done():
			return
		}
	}
}

func (p *Participant) stand(ctx context.Context, s *session.Session, call shardCall) error {
	x := draw(drawCoordinate, call.Rollout, p.cfg.Agent)
	at := call.Elect > 0 && x*float64(call.Elect) < firstCandidates
	if p.cfg.NeverCoordinate || !at && x*float64(call.Proposal.Hosts) >= restCandidates {
		return nil
	}
	for phase := rand.N(s.Timeout()); !at; phase = s.Timeout() { //nolint:gosec // the phase is no secret
		if err := s.Sleep(ctx, phase); err != nil {
			return err
		}
		gate, _, err := readRecord[Gate](ctx, s, gatePath(p.cfg.Root, call.Rollout))
		if err != nil || gate.State == GateClosed {
			return ignore(err, session.ErrNoNode)
		}
		names, _, err := s.Children(ctx, coordinatorPath(p.cfg.Root, call.Rollout))
		if err != nil {
			return ignore(err, session.ErrNoNode)
		}
		at = len(names) < fewCandidates
	}
	return p.campaign(ctx, s, call)
}

// campaign stays in the election until the gate is closed and this host's work is done.
func (p *Participant) campaign(ctx context.Context, s *session.Session, call shardCall) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer p.resumed(s)
	leading := make(chan struct{}, 1) // holds a value while this host leads
	candidate := election.New(election.Config{
		Name: call.Rollout, Path: coordinatorPath(p.cfg.Root, call.Rollout), ID: p.cfg.Agent, Logger: p.log,
		Lead: func(ctx context.Context, t election.Term) {
			select {
			case leading <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-leading }()
			if err := p.coordinate(ctx, s, call.Rollout, t); errors.Is(err, session.ErrNoAuth) {
				cancel(err) // another may be permitted
			}
		},
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.awaitClosed(ctx, s, call.Rollout); err == nil {
			select {
			case leading <- struct{}{}: // this host leads: finish the work
			case <-ctx.Done():
			}
			cancel(nil)
		}
	})
	err := candidate.Run(ctx, s, nil)
	cancel(nil)
	wg.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, session.ErrNoAuth) {
		return fmt.Errorf("coordinate: %w", cause)
	}
	return err
}

func (p *Participant) awaitClosed(ctx context.Context, s *session.Session, name string) error {
	for {
		data, _, watch, err := s.GetW(ctx, gatePath(p.cfg.Root, name))
		if err != nil {
			return ignore(err, session.ErrNoNode)
		}
		if gate, err := decode[Gate](gatePath(p.cfg.Root, name), data); err != nil || gate.State == GateClosed {
			watch.Stop()
			return err
		}
		if err := watch.Wait(ctx); err != nil {
			return err
		}
	}
}

// resumed says that this host knows of no halt any more. During an outage nobody knows
// better, and the halt stays.
func (p *Participant) resumed(s *session.Session) {
	if s.State() == session.Connected {
		p.cfg.Halted("", time.Time{})
	}
}

func (p *Participant) coordinate(ctx context.Context, s *session.Session, name string, t election.Term) error {
	defer p.resumed(s)
	for wait := firstRest; ; wait = min(2*wait, lastRest) {
		c := newCoordinator(p.cfg.Root, name, p.cfg.Agent, s, t, p.log)
		c.keep, c.onHalt, c.observer.check = p.keep, p.cfg.Halted, p.cfg.BakeCheck()
		err := c.run(ctx)
		c.stop()
		if err == nil || ctx.Err() != nil || s.Context().Err() != nil || errors.Is(err, session.ErrNoAuth) || errors.Is(err, errDeposed) {
			return err
		}
		p.log.Warn("rollout duty failed", "rollout", name, "duty", "coordinate", "err", err)
		if err := s.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
