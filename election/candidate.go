package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// ErrResigned is the cause of a term's end after Resign, or after Lead has
// returned by itself.
var ErrResigned = errors.New("resigned")

// Config describes one candidate.
type Config struct {
	Name string // of the election, in updates, logs and metrics
	Path string // its candidates are the children
	ID   string // data of our znode
	// Dialect is recipe.Curator (LeaderLatch, the default),
	// recipe.CuratorSelector (LeaderSelector) or recipe.Kazoo.
	Dialect string
	// JoinDelay is how long the candidate waits before it joins. So other candidates
	// that start at the same time come first. A candidate that leads keeps leading.
	JoinDelay time.Duration
	// Once ends Run after the first term: the candidate leads once, and leaves.
	Once bool
	// Observe makes updates name the leader while another candidate leads. Each
	// change of the leader then wakes every candidate that observes.
	Observe bool
	// Keep keeps the candidate's znode when the context of Run ends, for a later Run,
	// or for a process that takes the session over. Until the session ends, the znode
	// stays in line. It may become the leader's znode while no process does the work.
	Keep bool
	// Lead is called once in each term. Its context ends with the term, with a
	// cause. Lead must return within a third of the session timeout after that. If it
	// returns before the end of the term, the candidate resigns.
	Lead    func(ctx context.Context, t Term) `json:"-"`
	Logger  *slog.Logger                      `json:"-"` // nil: discard
	Metrics Metrics                           `json:"-"` // nil: none
}

// Candidate takes part in one election, again and again. Run it once per session.
type Candidate struct {
	cfg Config
	led atomic.Bool // the last candidacy has led

	mu  sync.Mutex // mu guards what follows
	cur *candidacy // what Resign ends; nil: none
	old *keptTurn  // a znode that was kept; nil: none
}

// candidacy is one znode's way from joining to leaving.
type candidacy struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the znode is gone, or was kept
	err    error         // of leaving; valid when done is closed
}

// keptTurn is a participation that outlives a Run.
type keptTurn struct {
	s           *session.Session
	participant *recipe.Participant
}

// New returns a candidate. It does no I/O.
func New(cfg Config) *Candidate {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With("election", cfg.Name)
	if cfg.Metrics == nil {
		cfg.Metrics = noMetrics{}
	}
	return &Candidate{cfg: cfg}
}

// Run campaigns, leads, and campaigns again, until ctx or the session ends. It calls up
// with the leader, at once and on each change, from one goroutine. up may be nil.
// It returns nil when ctx is done, or after the first term if the configuration says
// Once. It returns an error when it cannot continue in this session.
func (c *Candidate) Run(ctx context.Context, s *session.Session, up func(*view.Leader)) error {
	participants, err := recipe.Candidates(c.cfg.Path, c.cfg.Dialect, c.cfg.Logger)
	if err != nil {
		return fmt.Errorf("election %s: %w", c.cfg.Name, err)
	}
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	states := make(chan state)
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		failed = c.campaign(run, s, participants, func(l view.Leader) { states <- state{mine: &l} })
		cancel(errors.New("campaign ended"))
	})
	if c.cfg.Observe {
		wg.Go(func() { c.observe(run, s, participants, func(l view.Leader) { states <- state{seen: &l} }) })
	}
	go func() {
		wg.Wait()
		close(states)
	}()
	c.report(states, up)
	if ctx.Err() != nil || failed == nil {
		return nil
	}
	return fmt.Errorf("election %s: %w", c.cfg.Name, failed)
}

// Serve stands in each session of m, one after another, until ctx ends or the only term
// is over. It returns nil then, and otherwise what [session.Manager.Each] returns. The
// Manager's Run must be running.
func (c *Candidate) Serve(ctx context.Context, m *session.Manager) error {
	return m.Each(ctx, func(ctx context.Context, s *session.Session) error { return c.Run(ctx, s, nil) })
}

// observe follows the leader. When ctx or the session ends, the campaign notices that
// too. Other errors leave the leader unknown.
func (c *Candidate) observe(ctx context.Context, s *session.Session, participants *recipe.Participants, notify func(view.Leader)) {
	err := participants.Follow(ctx, s, func(l recipe.Leader) { notify(leaderOf(c.cfg.Name, c.cfg.Path, l)) })
	if ctx.Err() == nil && s.Context().Err() == nil {
		c.cfg.Logger.Warn("the leader cannot be observed", "path", c.cfg.Path, "err", err)
	}
}

// Resign ends the term, or the wait for one, and deletes our znode. It returns when the
// znode is deleted. Run then rests for a third of the session timeout and joins again, at
// the end of the line. Resign returns nil when the candidate does not stand.
func (c *Candidate) Resign(ctx context.Context) error {
	c.mu.Lock()
	cur := c.cur
	c.mu.Unlock()
	if cur != nil {
		cur.cancel(ErrResigned)
		select {
		case <-cur.done:
		case <-ctx.Done():
			return fmt.Errorf("resign from %s: %w", c.cfg.Name, context.Cause(ctx))
		}
		if cur.err != nil {
			return cur.err
		}
	}
	c.mu.Lock()
	old := c.old // also of a Run whose context ended before it could resign
	c.old = nil
	c.mu.Unlock()
	if old == nil || old.s.Context().Err() != nil {
		return nil //nolint:nilerr // the znode went with its session
	}
	return old.participant.Leave(ctx)
}

// Term is one period of leadership.
type Term struct {
	// ID numbers the term: the czxid of the leader's znode. It grows from
	// leader to leader and is the fencing token.
	ID      int64
	Path    string           // of the leader's znode
	Session *session.Session // whose znode leads
}

// Guard returns an operation that makes a multi fail when the term is over. The path
// contains a GUID, so it never belongs to another candidate.
func (t Term) Guard() session.Op { return session.CheckOp(t.Path, -1) }

// Held reports whether the lease of the term's session runs. Check it before each act, in
// addition to the context of the term.
func (t Term) Held() bool { return t.Session.Held() }

// Observe follows the leader of the election at path, without being a candidate. It ends
// with ctx or the session, and returns the cause. It calls up at once and on each change
// of the leader. The ID is empty while there is no leader.
func Observe(ctx context.Context, s *session.Session, path, dialect string, up func(view.Leader)) error {
	participants, err := recipe.Candidates(path, dialect, nil)
	if err != nil {
		return fmt.Errorf("observe election: %w", err)
	}
	err = participants.Follow(ctx, s, func(l recipe.Leader) { up(leaderOf("", path, l)) })
	return fmt.Errorf("observe election %s: %w", path, err)
}

// Metrics counts the events of the candidates of a process. Package prom has one for
// Prometheus. Its methods may be called from any goroutine.
type Metrics interface {
	// Leads gets whether this process leads the election of that name.
	Leads(election string, mine bool)
	// Elected counts a term.
	Elected(election string)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Leads(string, bool) {}
func (noMetrics) Elected(string)     {}
