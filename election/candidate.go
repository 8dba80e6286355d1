package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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
	// Lead is called when a term begins, and again when it continues after a suspension,
	// also with Once. Its context ends with either, with a cause. Lead must return within a
	// third of the session timeout after that. If it returns earlier, the candidate resigns.
	Lead    func(ctx context.Context, t Term) `json:"-"`
	Logger  *slog.Logger                      `json:"-"` // nil: discard
	Metrics Metrics                           `json:"-"` // nil: none
}

// Candidate takes part in one election, again and again. Run it once per session.
type Candidate struct {
	cfg Config
	led atomic.Bool // the last candidacy has led

	mu  sync.Mutex // mu guards the fields below
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
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("election", cfg.Name)
	cfg.Metrics = cmp.Or[Metrics](cfg.Metrics, noMetrics{})
	return &Candidate{cfg: cfg}
}

// Run campaigns, leads, and campaigns again, until ctx or the session ends. It calls up
// with the leader, at once and when it has changed, from one goroutine. up may be nil.
// It returns nil when ctx is done, or after the first term if the configuration says
// Once. It returns an error when it cannot continue in this session.
func (c *Candidate) Run(ctx context.Context, s *session.Session, up func(*view.Leader)) error {
	participants, err := recipe.Candidates(c.cfg.Path, c.cfg.Dialect, c.cfg.Logger)
	if err == nil && c.cfg.ID == "" {
		err = errors.New("ID is empty; it names this candidate to the others")
	}
	if err != nil {
		return fmt.Errorf("election %s: %w", c.cfg.Name, err)
	}
	s = session.Usable(s, c.cfg.Path)
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	learned := make(chan func(*outlook))
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		failed = c.campaign(run, s, participants, func(l view.Leader) { learned <- func(o *outlook) { o.mine = l } })
		cancel(errors.New("campaign ended"))
	})
	if c.cfg.Observe {
		wg.Go(func() {
			err := participants.Follow(run, s, func(l recipe.Leader) {
				learned <- func(o *outlook) { o.seen, o.observed = leaderOf(c.cfg.Name, c.cfg.Path, l), true }
			})
			// At the end of ctx or the session, which the campaign notices too, the leader is
			// of no interest. Other errors leave it unknown.
			if run.Err() == nil && s.Context().Err() == nil {
				c.cfg.Logger.Warn("the leader cannot be observed", "path", c.cfg.Path, "err", err)
			}
		})
	}
	go func() {
		wg.Wait()
		close(learned)
	}()
	c.report(learned, up)
	if ctx.Err() != nil || failed == nil {
		return nil
	}
	return fmt.Errorf("election %s: %w", c.cfg.Name, failed)
}

// Serve is a candidate in one session of m after another, until ctx ends or the only
// term is over. Then it returns nil. Otherwise it returns the error of
// [session.Manager.Each]. The Manager's Run must be running.
func (c *Candidate) Serve(ctx context.Context, m *session.Manager) error {
	err := m.Each(ctx, func(ctx context.Context, s *session.Session) error { return c.Run(ctx, s, nil) })
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the caller has ended it
	}
	return err
}

// Resign ends the term, or the wait for one, and deletes our znode. It returns when the
// znode is deleted. Run then rests for a third of the session timeout and joins again,
// at the end of the line. Resign returns nil when we are not a candidate.
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

// Observe follows the leader of the election at path, without being a candidate. It calls
// up at once and when the leader has changed; it may skip leaders. The ID is empty while
// there is no leader. It returns nil when ctx ends, and the cause when the session ends.
func Observe(ctx context.Context, s *session.Session, path, dialect string, up func(view.Leader)) error {
	participants, err := recipe.Candidates(path, dialect, nil)
	if err != nil {
		return fmt.Errorf("observe election: %w", err)
	}
	return participants.Follow(ctx, session.Usable(s, path, up != nil), func(l recipe.Leader) { up(leaderOf("", path, l)) })
}

// Metrics counts the events of the candidates of a process. Package prom has one for
// Prometheus. Its methods may be called from any goroutine.
type Metrics interface {
	// Leads gets whether this process leads the election of that name.
	Leads(election string, mine bool)
	// Elected counts a term.
	Elected(election string)
}

type noMetrics struct{}

func (noMetrics) Leads(string, bool) {}
func (noMetrics) Elected(string)     {}

// campaign runs one candidacy after another. It returns the cause when ctx or the
// session has ended, and an error that the server returned.
func (c *Candidate) campaign(ctx context.Context, s *session.Session, participants *recipe.Participants, notify func(view.Leader)) error {
	notify(view.Leader{Name: c.cfg.Name, Path: c.cfg.Path})
	for {
		err := c.candidacy(ctx, s, participants, notify)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.Context().Err() != nil:
			return context.Cause(s.Context())
		case c.cfg.Once && c.led.Load():
			return nil
		case !errors.Is(err, ErrResigned) && !errors.Is(err, recipe.ErrNotHeld):
			return err
		}
		c.cfg.Logger.Info("candidacy ended", "path", c.cfg.Path, "err", err)
		if err := s.Sleep(ctx, s.Timeout()/3); err != nil {
			return err
		}
	}
}

// candidacy joins, waits, leads and leaves. It returns why it ended.
func (c *Candidate) candidacy(ctx context.Context, s *session.Session, participants *recipe.Participants, notify func(view.Leader)) error {
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cur := &candidacy{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	c.led.Store(false)
	old := c.old
	c.cur, c.old = cur, nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cur = nil
		close(cur.done)
	}()

	participant, err := c.enter(own, s, participants, old)
	if err != nil {
		return reason(own, err)
	}
	c.cfg.Logger.Debug("candidate joined", "path", participant.Path(), "czxid", participant.Fence())
	for {
		if err = participant.Wait(own); err == nil {
			err = c.lead(own, s, participant, notify)
		}
		// After a suspension that the session survived, our znode still exists.
		if !errors.Is(err, session.ErrSuspended) || own.Err() != nil || s.Context().Err() != nil {
			break
		}
	}
	err = reason(own, err)
	cur.err = c.leave(ctx, s, participant, err)
	return err
}

// reason returns why ctx ended, or err while it has not.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// leaveWait is how long a candidate waits for the delete of its znode. After that the
// delete continues in the background, as long as the session lives.
const leaveWait = 5 * time.Second

// leave deletes the znode, or keeps it for a successor.
func (c *Candidate) leave(ctx context.Context, s *session.Session, participant *recipe.Participant, why error) error {
	switch {
	case s.Context().Err() != nil, errors.Is(why, recipe.ErrLost):
		return nil // it is gone
	case ctx.Err() != nil && c.cfg.Keep && !errors.Is(why, ErrResigned):
		c.mu.Lock()
		c.old = &keptTurn{s, participant}
		c.mu.Unlock()
		return nil
	}
	bounded, cancel := context.WithTimeout(s.Context(), min(s.Timeout(), leaveWait))
	defer cancel()
	if err := participant.Leave(bounded); err != nil {
		participant.Abandon()
		return fmt.Errorf("leave election %s: %w", c.cfg.Name, err)
	}
	return nil
}

// lead holds one term, from the proof that our znode exists until Lead has returned. It
// returns why the term ended.
func (c *Candidate) lead(ctx context.Context, s *session.Session, participant *recipe.Participant, notify func(view.Leader)) error {
	hold, err := participant.Hold(ctx)
	if err != nil {
		return err
	}
	term, cancel := context.WithCancelCause(hold.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	leader := view.Leader{Name: c.cfg.Name, Path: c.cfg.Path, ID: c.cfg.ID, Term: participant.Fence(), Mine: true}
	c.led.Store(true)
	c.cfg.Metrics.Elected(c.cfg.Name)
	c.cfg.Logger.Info("term began", "path", participant.Path(), "term", participant.Fence())
	notify(leader)
	deposed := make(chan struct{})
	go func() { // report the end at once, however long Lead takes to return
		defer close(deposed)
		<-term.Done()
		notify(view.Leader{Name: c.cfg.Name, Path: c.cfg.Path})
	}()
	if c.cfg.Lead != nil {
		c.cfg.Lead(term, Term{ID: participant.Fence(), Path: participant.Path(), Session: s})
	} else {
		<-term.Done()
	}
	cancel(ErrResigned) // when Lead returned by itself
	<-deposed
	stop()
	hold.Keep()
	why := context.Cause(term)
	c.cfg.Logger.Info("term ended", "path", participant.Path(), "term", participant.Fence(), "err", why)
	return why
}

// enter returns our participant: one that this session owns already, or a
// new one after the delay.
func (c *Candidate) enter(ctx context.Context, s *session.Session, participants *recipe.Participants, old *keptTurn) (*recipe.Participant, error) {
	if old != nil && old.s == s {
		return old.participant, nil // Run continues where the last one ended
	}
	if s.Resumed() {
		participant, err := c.adopt(ctx, s, participants)
		if participant != nil || err != nil {
			return participant, err
		}
	}
	if c.cfg.JoinDelay > 0 {
		if err := s.Sleep(ctx, c.cfg.JoinDelay); err != nil {
			return nil, err
		}
	}
	return participants.Join(ctx, s, []byte(c.cfg.ID))
}

// adopt looks for candidates that a previous process of this session left. It keeps the
// first one with our id. It deletes all others of the session, because no process would
// ever make them leave. It returns nil when it found no candidate with our id.
func (c *Candidate) adopt(ctx context.Context, s *session.Session, participants *recipe.Participants) (*recipe.Participant, error) {
	paths, err := s.Ephemerals(ctx, c.cfg.Path)
	if errors.Is(err, session.ErrUnimplemented) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for our candidates: %w", err)
	}
	var kept *recipe.Participant
	for _, path := range paths {
		dir, name := session.SplitPath(path)
		_, ours := recipe.ParseSequence(name, participants.Mark())
		if dir != strings.TrimSuffix(c.cfg.Path, "/") || !ours {
			continue
		}
		data, stat, err := s.Get(ctx, path)
		if errors.Is(err, session.ErrNoNode) {
			continue
		}
		if err != nil {
			return nil, err
		}
		participant, err := participants.Adopt(s, path, stat)
		switch {
		case err != nil:
			continue
		case string(data) != c.cfg.ID, kept != nil && kept.Sequence().Before(participant.Sequence()):
			participant.Abandon()
			continue
		case kept != nil:
			kept.Abandon()
		}
		kept = participant
	}
	return kept, nil
}

// outlook is what Run has learned.
type outlook struct {
	mine     view.Leader // what our own candidacy knows: whether we lead
	seen     view.Leader // the first in line
	observed bool        // seen is known, or not wanted
}

// report turns what Run learns into updates: our own term counts first, then the observed
// leader. It sends an update only if it differs from the one before. It returns when
// learned is closed.
func (c *Candidate) report(learned <-chan func(*outlook), up func(*view.Leader)) {
	o := outlook{seen: view.Leader{Name: c.cfg.Name, Path: c.cfg.Path}, observed: !c.cfg.Observe}
	var last *view.Leader
	for learn := range learned {
		learn(&o)
		now := o.seen
		if o.mine.Mine {
			now = o.mine
		}
		// Send no update while the leader is unknown.
		if !o.mine.Mine && !o.observed || last != nil && *last == now {
			continue
		}
		last = &now
		c.cfg.Metrics.Leads(c.cfg.Name, now.Mine)
		if up != nil {
			up(last)
		}
	}
	c.cfg.Metrics.Leads(c.cfg.Name, false)
}

// maxRawID bounds what is kept of an id that is no name.
const maxRawID = 256

// leaderOf returns the update for the leader. Whoever can write the election chooses
// the data of the znode, so only a name becomes the id. A leader without an id has none.
func leaderOf(name, path string, l recipe.Leader) view.Leader {
	u := view.Leader{Name: name, Path: path, ID: string(l.Data), Term: l.Stat.Czxid}
	if u.ID != "" && !view.IsName(u.ID) {
		u.RawID, u.Znode, u.ID = u.ID[:min(len(u.ID), maxRawID)], l.Path, ""
	}
	return u
}
