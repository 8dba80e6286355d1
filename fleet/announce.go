package fleet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// How an agent announces itself.
const (
	announceEvery = time.Second      // between two writes of a record
	knownAfter    = 10 * time.Second // before a record says that the host knows a newer version, and nothing else
	sweepEvery    = 24 * time.Hour   // between two looks at hosts that are gone
	rivalMargin   = 5 * time.Second  // beyond the session timeout, before another session is a rival
	farewellLimit = 5 * time.Second  // for the note of a clean stop
)

// AnnouncerConfig configures an Announcer.
type AnnouncerConfig struct {
	ID string
	// Host is the name that another agent with the same id shows for this agent.
	Host string
	// Record returns the current record.
	Record func() Record
	// Health returns the health of that record. The Announcer calls it more often
	// than Record.
	Health func() Health
	// Changed receives a value when the result of Record may have changed.
	Changed <-chan struct{}
	// The Announcer calls Rival with a description when another agent has the same
	// id, and with an empty text when that agent is gone. nil: nobody wants to know.
	Rival  func(text string)
	Logger *slog.Logger
}

// Announcer keeps the record of one agent. Run it once per session.
type Announcer struct {
	cfg AnnouncerConfig
}

// NewAnnouncer returns an Announcer; it does no I/O.
func NewAnnouncer(cfg AnnouncerConfig) *Announcer {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Announcer{cfg: cfg}
}

// Run keeps the record until ctx or the session ends. When ctx ends, the agent
// stops on purpose. Run notes the stop before it deletes the record; otherwise a
// reader would report the host as lost.
func (a *Announcer) Run(ctx context.Context, s *session.Session) error {
	path := AgentPath(a.cfg.ID)
	s = session.Usable(s, path, a.cfg.Record != nil, a.cfg.Health != nil)
	if s.Context().Err() != nil {
		return context.Cause(s.Context())
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	record := a.cfg.Record()
	node := recipe.NewNode(recipe.NodeConfig{Path: path, Data: record.encode(), Logger: a.cfg.Logger})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	ended := make(chan error, 1)
	wg.Go(func() { ended <- node.Run(life, s) })
	wg.Go(func() { a.others(life, s, node.Created()) })
	spread := announceEvery
	select {
	case <-node.Created():
		if err := a.remember(ctx, s); err != nil && ctx.Err() == nil {
			return err
		}
		if names, err := namesBelow(ctx, s, AgentsPath, Shard(a.cfg.ID)); err == nil {
			spread = max(spread, time.Duration(len(names)*Shards)*time.Millisecond)
		}
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
	wg.Go(func() { // about once a day, at a random time
		for s.Sleep(life, sweepEvery/2+rand.N(sweepEvery)) == nil { //nolint:gosec // chance, no secret.
			if err := sweep(life, s, a.cfg.ID, time.Now()); err != nil && life.Err() == nil {
				a.cfg.Logger.Debug("hosts that are gone not looked at", "err", err)
			}
		}
	})
	err := a.keep(ctx, s, node, record, spread, ended)
	if ctx.Err() != nil && s.Context().Err() == nil {
		a.farewell(s)
		return nil
	}
	return err
}

// keep writes changes of the record. It writes a worse health at once. It folds all
// other changes and writes them late, at a random moment within spread, because a
// publish changes the record of every host. A record that only knows a newer version waits
// longer: the host will use that version soon.
func (a *Announcer) keep(ctx context.Context, s *session.Session, node *recipe.Node, record Record, spread time.Duration, ended <-chan error) error {
	written := string(record.encode())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Done():
			return context.Cause(s.Context())
		case err := <-ended:
			return err
		case <-a.cfg.Changed:
		}
		began := time.Now()
		timer := time.NewTimer(pace.Late(spread))
		for due := false; !due; {
			if a.cfg.Health().Rank() < record.Health.Rank() {
				break
			}
			select {
			case <-ctx.Done():
				due = true
			case <-s.Done():
				due = true
			case <-timer.C:
				due = time.Since(began) >= knownAfter || !a.cfg.Record().knowsMore(record)
				timer.Reset(rand.N(spread)) //nolint:gosec // chance, no secret.
			case <-a.cfg.Changed:
			}
		}
		timer.Stop()
		record = a.cfg.Record()
		if data := record.encode(); string(data) != written {
			node.SetData(data)
			written = string(data)
			if err := s.Sleep(ctx, announceEvery); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (a *Announcer) remember(ctx context.Context, s *session.Session) error {
	return editKnown(ctx, s, a.cfg.ID, func(k *knownHost, found bool) bool {
		if found && k.gone().IsZero() {
			return false
		}
		if !found {
			k.First = time.Now().UTC().Truncate(time.Second)
		}
		k.Stopped, k.Lost = time.Time{}, time.Time{}
		return true
	})
}

func (a *Announcer) farewell(s *session.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellLimit)
	defer cancel()
	err := editKnown(ctx, s, a.cfg.ID, func(k *knownHost, found bool) bool {
		k.Stopped, k.Lost = time.Now().UTC().Truncate(time.Second), time.Time{}
		return found
	})
	if err != nil {
		a.cfg.Logger.Warn("stop not noted in ZooKeeper: the fleet will show this host as lost", "path", knownAs(a.cfg.ID), "err", err)
	}
}

// others reports a second agent with this id. The agent that holds the record
// watches the rival znode. The other agent creates the rival znode once the record
// has belonged to another session for longer than the session timeout.
func (a *Announcer) others(ctx context.Context, s *session.Session, mine <-chan struct{}) {
	reported := ""
	notify := func(text string) {
		if text != reported && a.cfg.Rival != nil {
			reported = text
			a.cfg.Rival(text)
		}
	}
	defer func() { notify("") }()
	path := knownAs(a.cfg.ID) + "/rival"
	timer := time.NewTimer(s.Timeout() + rivalMargin)
	defer timer.Stop()
	for waiting := true; waiting; {
		select {
		case <-mine:
			waiting = false
		case <-ctx.Done():
			return
		case <-s.Done():
			return
		case <-timer.C:
			if s.State() == session.ReadOnly {
				// The record may belong to our own session, which continues with a majority.
				timer.Reset(rivalMargin)
				continue
			}
			if !a.complain(ctx, s, path, notify, mine) {
				return
			}
			waiting = false
		}
	}
	for {
		_, found, watch, err := s.ExistsW(ctx, path)
		if err != nil {
			return // the write of the record reports the error
		}
		text := ""
		if found {
			if data, _, err := s.Get(ctx, path); err == nil {
				text = Clip(string(data), 200) + " has the same agent id"
			}
		}
		notify(text)
		if watch.Wait(ctx) != nil {
			return
		}
	}
}

// complain holds the rival znode until the record belongs to this session.
func (a *Announcer) complain(ctx context.Context, s *session.Session, path string, notify func(string), mine <-chan struct{}) bool {
	st, found, err := s.Exists(ctx, AgentPath(a.cfg.ID))
	if err == nil && found {
		notify(fmt.Sprintf("another agent has the same id: session 0x%x; this one is not in the fleet", uint64(st.EphemeralOwner))) // #nosec G115 -- its bits are what is shown
	}
	rival, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	node := recipe.NewNode(recipe.NodeConfig{Path: path, Data: []byte(a.cfg.Host), Logger: slog.New(slog.DiscardHandler)})
	wg.Go(func() { _ = node.Run(rival, s) })
	select {
	case <-mine:
		return true
	case <-ctx.Done():
	case <-s.Done():
	}
	return false
}
