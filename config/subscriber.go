package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/zkagent/zkagent/internal/mirror"
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
//	<root>/subscribers/<agent id>   (E)  {"version":N,"state":"ok|failed|held","error":"..."}
//
// Guarantees: while Run runs, the znode exists in this session, also after
// somebody deleted it, and says what was reported last. A znode of another
// session of the same agent is waited for, and never deleted.
type Subscriber struct {
	cfg    SubscriberConfig
	log    *slog.Logger
	signal chan struct{} // size 1: something was reported

	mu  sync.Mutex // guards now
	now Subscription
}

// NewSubscriber returns a Subscriber. It does no I/O.
func NewSubscriber(cfg SubscriberConfig) *Subscriber {
	return &Subscriber{
		cfg: cfg, log: discard(cfg.Logger).With("component", "subscriber", "path", cfg.Path),
		signal: make(chan struct{}, 1), now: Subscription{State: StateOK},
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
	path := session.JoinPath(b.cfg.Path, elemSubscribers, b.cfg.ID)
	if err := session.ValidatePath(path); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	defer b.leave(ctx, s, path)
	own := &ownRecord{subscriber: b, path: path}
	for {
		watch, err := own.keep(ctx, s)
		if err == nil {
			err = own.pause(ctx, s, watch)
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil || s.Context().Err() != nil {
			return mirror.Ended(ctx, s, err)
		}
		b.log.Warn("subscription not written", "err", err)
		if err := s.Sleep(ctx, retryPause); err != nil {
			return mirror.Ended(ctx, s, err)
		}
	}
}

// again asks for another look at once.
func (b *Subscriber) again() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// leave deletes the znode, if it is ours.
func (b *Subscriber) leave(ctx context.Context, s *session.Session, path string) {
	if s.Context().Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseGrace)
	defer cancel()
	st, ok, err := s.Exists(ctx, path)
	if err == nil && ok && st.EphemeralOwner == s.ID() {
		err = s.Delete(ctx, path, -1)
	}
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		b.log.Warn("subscription not deleted, it ends with the session", "err", err)
	}
}

// Subscribers returns what the agents use that subscribe to the config, sorted
// by id. An agent whose data cannot be decoded has the state failed.
func Subscribers(ctx context.Context, s *session.Session, root string) ([]Subscription, error) {
	names, err := subscriberNames(ctx, s, root)
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = session.JoinPath(root, elemSubscribers, name)
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

// subscriberNames returns the ids of the subscribed agents, sorted.
func subscriberNames(ctx context.Context, s *session.Session, root string) ([]string, error) {
	names, _, err := s.Children(ctx, session.JoinPath(root, elemSubscribers))
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, fmt.Errorf("config %s: list subscribers: %w", root, err)
	}
	slices.Sort(names)
	return append([]string{}, names...), nil
}
