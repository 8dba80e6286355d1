package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Host is what takes part in rollouts on one machine: the agent.
type Host interface {
	// Vote renders the tree with the host's own data into a staging area and
	// runs the checks, and changes nothing in use. An error is a vote for
	// abort; its text is shown to the proposer.
	Vote(ctx context.Context, tree *view.Tree) error
	// Show puts a tree into use that needs no permit, and does not wait.
	Show(tree *view.Tree)
	// Use puts the tree into use and returns when it is, checked and
	// reloaded; an error means that the former one is in use again, but for
	// ErrStopping: nobody knows, and the next life of the agent goes on.
	Use(ctx context.Context, tree *view.Tree) error
}

// Config describes one host's part in the rollouts of one tree.
type Config struct {
	Root  string // root znode of the tree
	Agent string // agent id, unique in the fleet
	Host  Host
	// Tree reads a version of the tree, which never changes.
	Tree func(ctx context.Context, s *session.Session, version int64) (*view.Tree, error)
	// Life names this process, unlike any before and after it; empty: each
	// Participant is a life of its own.
	Life string
	// Maintenance tells why the host is in maintenance (empty: it is not), and
	// closes the channel when that changes. nil: it never is.
	Maintenance func() (string, <-chan struct{})
	Logger      *slog.Logger // nil: discard
}

// Participant votes on proposals, activates decided versions when it is
// permitted, and contends for the coordinator's part while a rollout is open.
type Participant struct {
	cfg Config
	log *slog.Logger
	// offers holds the newest tree that ready names; only the newest counts.
	offers chan *view.Tree
	life   context.Context //nolint:containedctx // that of Run, by which a stop is told from a newer offer
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
// it cannot go on in this session. It may be called once.
func (p *Participant) Run(ctx context.Context, s *session.Session) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.life = ctx
	var wg sync.WaitGroup
	for _, part := range []func(context.Context, *session.Session) error{p.followRollouts, p.followOffers} {
		wg.Go(func() {
			if err := part(ctx, s); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// followRollouts does the duties of each rollout while it is the open one.
func (p *Participant) followRollouts(ctx context.Context, s *session.Session) error {
	for ctx.Err() == nil {
		data, _, watch, err := s.GetW(ctx, currentPath(p.cfg.Root))
		if errors.Is(err, session.ErrNoNode) {
			if err := awaitChange(ctx, s, currentPath(p.cfg.Root)); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		err = p.duties(ctx, s, string(data), watch)
		watch.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// duties votes and contends until current changes.
func (p *Participant) duties(ctx context.Context, s *session.Session, name string, current *session.Watch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, duty := range []struct {
		what string
		do   func(context.Context, *session.Session, string) error
	}{{"vote", p.vote}, {"coordinate", p.contend}} {
		wg.Go(func() { p.insist(ctx, s, name, duty.what, duty.do) })
	}
	select {
	case <-ctx.Done():
	case <-s.Done():
	case <-current.C():
	}
	return nil
}

// insist does a duty again after an error, with a pause, until it is done or
// the rollout is not the open one any more.
func (p *Participant) insist(ctx context.Context, s *session.Session, name, what string, do func(context.Context, *session.Session, string) error) {
	const first, most = 200 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, most) {
		err := do(ctx, s, name)
		if err == nil || ctx.Err() != nil || s.Context().Err() != nil {
			return
		}
		p.log.Warn("rollout duty failed", "rollout", name, "duty", what, "err", err)
		if !pause(ctx, wait) {
			return
		}
	}
}

// vote casts this host's vote once, if it is asked for one.
func (p *Participant) vote(ctx context.Context, s *session.Session, name string) error {
	state, err := readProposal(ctx, s, p.cfg.Root, name)
	if err != nil || !contains(state.Participants, p.cfg.Agent) {
		return ignoreGone(err)
	}
	path := votesPath(p.cfg.Root, name) + "/" + p.cfg.Agent
	for _, settled := range []string{path, decisionPath(p.cfg.Root, name)} {
		if _, there, err := s.Exists(ctx, settled); err != nil || there {
			return err
		}
	}
	vote, err := p.judge(ctx, s, state)
	if err != nil {
		return err
	}
	_, _, err = s.Create(ctx, path, encode(vote), session.Persistent)
	switch {
	case errors.Is(err, session.ErrNoNode):
		return nil // the rollout was collected
	case err != nil && !errors.Is(err, session.ErrNodeExists):
		return fmt.Errorf("vote: %w", err)
	}
	p.log.Info("voted", "rollout", name, "version", state.Version, "commit", vote.Commit, "reason", vote.Reason)
	return nil
}

// maxReason bounds what a vote or a halt carries of a check's output, bytes.
const maxReason = 4096

// judge asks the host. An error of ZooKeeper is no vote; what the host says
// is.
func (p *Participant) judge(ctx context.Context, s *session.Session, proposal Proposal) (Vote, error) {
	if reason, _ := p.cfg.Maintenance(); reason != "" {
		return Vote{Skip: true, Reason: maintenanceWords(reason)}, nil
	}
	tree, err := p.cfg.Tree(ctx, s, proposal.Version)
	if err != nil {
		if ctx.Err() != nil || s.Context().Err() != nil || errors.Is(err, session.ErrUnknown) {
			return Vote{}, err
		}
		return Vote{Reason: clip(fmt.Sprintf("read version %d: %v", proposal.Version, err))}, nil
	}
	err = p.cfg.Host.Vote(ctx, tree)
	if ctx.Err() != nil {
		return Vote{}, ctx.Err()
	}
	if err != nil {
		return Vote{Reason: clip(err.Error())}, nil
	}
	return Vote{Commit: true}, nil
}

func readProposal(ctx context.Context, s *session.Session, root, name string) (Proposal, error) {
	data, _, err := s.Get(ctx, rolloutPath(root, name))
	if err != nil {
		return Proposal{}, err
	}
	return decode[Proposal](rolloutPath(root, name), data)
}

// awaitChange waits until the znode is created, changed or deleted.
func awaitChange(ctx context.Context, s *session.Session, path string) error {
	_, there, watch, err := s.ExistsW(ctx, path)
	if err != nil {
		return err
	}
	defer watch.Stop()
	if there {
		return nil
	}
	return wait(ctx, s, watch)
}

// wait waits until one of the watches fires; it returns the cause when ctx or
// the session ends first.
func wait(ctx context.Context, s *session.Session, watch *session.Watch) error {
	select {
	case <-watch.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return context.Cause(s.Context())
	}
}

// pause waits; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ignoreGone is for a rollout that was collected while we looked at it.
func ignoreGone(err error) error {
	if errors.Is(err, session.ErrNoNode) {
		return nil
	}
	return err
}

// clip shortens the words of one host.
func clip(s string) string { return clipTo(s, maxReason) }

func clipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + " ..."
}
