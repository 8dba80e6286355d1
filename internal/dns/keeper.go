package dns

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
)

// listenAgain is the pause before another try to open a listener.
const listenAgain = 10 * time.Second

// Keeper keeps the listener as the settings want it. If it cannot open the
// listener, it reports the error and tries again.
type Keeper struct {
	Want    func() *Config // of the settings in use; nil: no listener
	State   func() State
	Metrics *Metrics
	Logger  *slog.Logger
	// Failed is called with each failure and, with nil, when the listener is as
	// the settings want it.
	Failed func(address string, err error)

	changed chan struct{} // size 1
	server  atomic.Pointer[Server]
}

// NewKeeper makes a keeper; the caller sets its fields before Run.
func NewKeeper() *Keeper { return &Keeper{changed: make(chan struct{}, 1)} }

// Changed says that the settings may want another listener. It does not wait.
func (k *Keeper) Changed() { pace.Notify(k.changed) }

// Addr returns the address of the listener; empty: no listener.
func (k *Keeper) Addr() string {
	if s := k.server.Load(); s != nil && s.Addr().IsValid() {
		return s.Addr().String()
	}
	return ""
}

// Run follows the settings until ctx ends. It closes the listener before it
// returns.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		cfg := k.Want()
		serving, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { k.serve(serving, cfg) })
		for ctx.Err() == nil && reflect.DeepEqual(k.Want(), cfg) {
			select {
			case <-k.changed:
			case <-ctx.Done():
			}
		}
		cancel()
		wg.Wait()
	}
}

// serve keeps one listener open until ctx ends; nil: none.
func (k *Keeper) serve(ctx context.Context, cfg *Config) {
	if cfg == nil {
		k.Failed("", nil)
		return
	}
	for ctx.Err() == nil {
		s, err := New(*cfg, k.State, k.Metrics, k.Logger)
		if err == nil {
			s.open = func() { k.Failed(cfg.Listen, nil) }
			k.server.Store(s)
			err = s.Run(ctx)
			k.server.Store(nil)
		}
		if ctx.Err() != nil {
			return
		}
		k.Failed(cfg.Listen, err)
		pace.Sleep(ctx, listenAgain)
	}
}
