package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// States of a subscriber.
const (
	StateOK     = "ok"     // the version is in use
	StateFailed = "failed" // the version was refused; the one before is in use
	StateHeld   = "held"   // the agent waits before it uses a newer version
	// StateMaintenance says that the host is in maintenance: no rollout waits
	// for it, and it keeps its version.
	StateMaintenance = "maintenance"
)

// Subscription is the data of a subscriber's znode: what one agent uses.
type Subscription struct {
	ID      string `json:"-"` // the name of the znode
	Version int64  `json:"version"`
	State   string `json:"state"`
	Error   string `json:"error,omitempty"`
}

// SubscriberConfig describes one agent's subscription to a config.
type SubscriberConfig struct {
	Path   string // root znode of the config
	ID     string // agent id
	Logger *slog.Logger
}

// maxError bounds the error of a subscription in bytes.
const maxError = 1024

// Subscriber tells publishers and other agents what this agent uses:
//
//	<root>/rollouts/shards/<h>/<agent id>   (E)  {"version":N,"state":"ok|failed|held","error":"..."}
//
// Guarantees: while Run runs, the znode exists in this session, also after
// somebody deleted it, and says what was reported last. A znode of another
// session of the same agent is waited for, and never deleted.
//
// That a version is in use is written at a random moment of the second that
// follows, or of more in a large fleet: a millisecond for each host. What else
// is reported is written at once. Nothing relies on a timely report.
type Subscriber struct {
	cfg    SubscriberConfig
	log    *slog.Logger
	signal chan struct{} // size 1: something was reported

	mu    sync.Mutex // guards what follows
	now   Subscription
	hosts int
	owned bool
	moved chan struct{} // closed when owned changes
}

// NewSubscriber returns a Subscriber. It does no I/O.
func NewSubscriber(cfg SubscriberConfig) *Subscriber {
	return &Subscriber{
		cfg: cfg, log: discard(cfg.Logger).With("component", "subscriber", "path", cfg.Path),
		signal: make(chan struct{}, 1), now: Subscription{State: StateOK}, moved: make(chan struct{}),
	}
}

// Report notes what this agent uses now. It never blocks; reports that come
// faster than they are written are folded into one.
func (b *Subscriber) Report(version int64, state string, err error) {
	now := Subscription{Version: version, State: state}
	if err != nil {
		now.Error = err.Error()
		now.Error = now.Error[:min(len(now.Error), maxError)]
	}
	b.mu.Lock()
	b.now = now
	b.mu.Unlock()
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// Spread tells how many hosts subscribe, by which the reports are spread.
func (b *Subscriber) Spread(hosts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hosts = hosts
}

// delay is after what time a report is written: a znode that is not there yet
// is created with the newest.
func (b *Subscriber) delay() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now.State != StateOK || !b.owned {
		return 0
	}
	return rand.N(max(time.Second, time.Duration(b.hosts)*time.Millisecond)) //nolint:gosec // It spreads load and is no secret.
}

// Owned tells whether the znode is this session's, and closes the channel when
// that changes: of two agents with one id only one takes part in rollouts.
func (b *Subscriber) Owned() (bool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owned, b.moved
}

func (b *Subscriber) own(mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owned != mine {
		b.owned = mine
		close(b.moved)
		b.moved = make(chan struct{})
	}
}

// data is what the znode is to say.
func (b *Subscriber) data() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, err := json.Marshal(b.now)
	if err != nil { // A struct of a number and strings always encodes.
		panic(err)
	}
	return data
}

// Run keeps the znode until ctx ends, and deletes it then. It returns the cause
// when the session ends.
func (b *Subscriber) Run(ctx context.Context, s *session.Session) error {
	path := SubscriptionPath(b.cfg.Path, b.cfg.ID)
	if err := session.ValidatePath(path); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	node := recipe.NewNode(recipe.NodeConfig{Path: path, Data: b.data(), Owned: b.own, Logger: b.log})
	var wg sync.WaitGroup
	defer wg.Wait()
	passing, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { b.pass(passing, node) })
	for {
		err := node.Run(ctx, s)
		if ctx.Err() != nil || s.Context().Err() != nil {
			return mirror.Ended(ctx, s, err)
		}
		b.log.Warn("subscription not written", "err", err)
		_ = s.Sleep(ctx, retryPause) // what ended it ends the next Run, which tidies up
	}
}

// pass gives the node what is reported. What is reported while a report waits
// goes with it.
func (b *Subscriber) pass(ctx context.Context, node *recipe.Node) {
	var due <-chan time.Time
	for {
		select {
		case <-b.signal:
			if d := b.delay(); d > 0 {
				if due == nil {
					due = time.NewTimer(d).C
				}
				continue
			}
		case <-due:
		case <-ctx.Done():
			return
		}
		due = nil
		node.SetData(b.data())
	}
}

// Subscribers returns what the agents use that subscribe to the config, sorted
// by id. An agent whose data cannot be decoded has the state failed.
func Subscribers(ctx context.Context, s *session.Session, root string) ([]Subscription, error) {
	shards, err := SubscriberIDs(ctx, s, root)
	if err != nil {
		return nil, err
	}
	var names, paths []string
	for _, ids := range shards {
		names = append(names, ids...)
	}
	slices.Sort(names)
	for _, id := range names {
		paths = append(paths, SubscriptionPath(root, id))
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, fmt.Errorf("config %s: read subscribers: %w", root, err)
	}
	list := []Subscription{}
	for i, r := range results {
		if errors.Is(r.Err, session.ErrNoNode) {
			continue
		}
		if r.Err != nil {
			return nil, fmt.Errorf("config %s: read subscriber %s: %w", root, names[i], r.Err)
		}
		sub := Subscription{}
		if err := json.Unmarshal(r.Data, &sub); err != nil {
			sub = Subscription{State: StateFailed, Error: fmt.Sprintf("subscription cannot be decoded: %v", err)}
		}
		sub.ID = names[i]
		list = append(list, sub)
	}
	return list, nil
}
