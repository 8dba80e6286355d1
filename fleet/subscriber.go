package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// States of a subscriber.
const (
	StateOK     = "ok"     // the version is in use
	StateFailed = "failed" // the version was refused; the one before is in use
	// StateMaintenance says that the host is in maintenance: no rollout waits
	// for it, and it keeps its version.
	StateMaintenance = "maintenance"
)

// Subscription is the data of a subscriber's znode: the versions that one agent uses.
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
	// Problem, if not nil, is called when the znode cannot be written, and with nil
	// when it is. It must not block.
	Problem func(error)
}

const (
	subscribeAgain = 5 * time.Second // after a write that failed
	// maxSpread bounds the hosts for which reports are delayed: a number that ready
	// gives by mistake must not delay them for years.
	maxSpread = 1_000_000
)

// Subscriber publishes which version this agent uses:
//
//	<root>/rollouts/shards/<h>/<agent id>   (E)  {"version":N,"state":"ok|failed|held","error":"..."}
//
// Guarantees: while Run runs, the znode exists in this session and holds the last
// report. If another client deletes it, Run creates it again. Run waits for a znode
// of another session of the same agent and never deletes it.
//
// A report that a version is in use is written after a quarter of a second and a random
// delay, up to a second or, in a large fleet, a millisecond per host. All other reports
// are written at once. Nothing relies on a timely report.
type Subscriber struct {
	cfg    SubscriberConfig
	log    *slog.Logger
	signal chan struct{} // size 1: something was reported

	mu    sync.Mutex // guards the fields below
	now   Subscription
	hosts int
	owned bool
	moved chan struct{} // closed when owned changes
}

// NewSubscriber returns a Subscriber. It does no I/O.
func NewSubscriber(cfg SubscriberConfig) *Subscriber {
	if cfg.Problem == nil {
		cfg.Problem = func(error) {}
	}
	return &Subscriber{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("component", "subscriber", "path", cfg.Path),
		signal: make(chan struct{}, 1), now: Subscription{State: StateOK}, moved: make(chan struct{}),
	}
}

// Report notes the version that this agent uses now. It never blocks. If reports
// come faster than Run writes them, Run writes only the latest.
func (b *Subscriber) Report(version int64, state string, err error) {
	now := Subscription{Version: version, State: state}
	if err != nil {
		now.Error = clip(err.Error())
	}
	b.mu.Lock()
	b.now = now
	b.mu.Unlock()
	pace.Notify(b.signal)
}

// Spread sets the number of subscribed hosts, which determines the delay of
// reports.
func (b *Subscriber) Spread(hosts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hosts = min(hosts, maxSpread)
}

// delay returns how long a report waits before it is written. A missing znode is
// created at once with the latest report.
func (b *Subscriber) delay() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now.State != StateOK || !b.owned {
		return 0
	}
	return pace.Late(max(time.Second, time.Duration(b.hosts)*time.Millisecond))
}

// Owned reports whether this session owns the znode. The channel is closed when
// that changes. Of two agents with one id, only the owner takes part in rollouts.
func (b *Subscriber) Owned() (bool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owned, b.moved
}

func (b *Subscriber) own(mine bool) {
	if mine {
		b.cfg.Problem(nil)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owned != mine {
		b.owned = mine
		close(b.moved)
		b.moved = make(chan struct{})
	}
}

func (b *Subscriber) data() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return encode(b.now)
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
		b.cfg.Problem(err)
		_ = s.Sleep(ctx, subscribeAgain) // an ended context or session ends the next Run, which cleans up
	}
}

// pass writes reports to the node. A report that comes during the delay of another
// is written with it.
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

// Subscribers returns the subscriptions to the config, sorted by agent id. An agent
// whose data cannot be decoded has the state failed.
func Subscribers(ctx context.Context, s *session.Session, root string) ([]Subscription, error) {
	names, err := namesBelow(ctx, s, trees.RolloutsPath(root)+"/shards", shardNames()...)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	list := []Subscription{}
	path := func(id string) string { return SubscriptionPath(root, id) }
	err = getEach(ctx, s, names, path, func(id string, r session.Result) error {
		if r.Err != nil {
			return fmt.Errorf("subscriber %s: %w", id, r.Err)
		}
		sub := Subscription{}
		if err := json.Unmarshal(r.Data, &sub); err != nil {
			sub = Subscription{State: StateFailed, Error: fmt.Sprintf("subscription cannot be decoded: %v", err)}
		}
		sub.ID = id
		list = append(list, sub)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("config %s: read subscribers: %w", root, err)
	}
	return list, nil
}
