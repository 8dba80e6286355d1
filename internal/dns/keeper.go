package dns

import (
	"context"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"
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
func (k *Keeper) Changed() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

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
		k.serve(ctx, k.Want())
	}
}

func (k *Keeper) serve(ctx context.Context, cfg *Config) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	if cfg == nil {
		k.Failed("", nil)
	} else {
		s, err := New(*cfg, k.State, k.Metrics, k.Logger)
		if err != nil {
			ended <- err
		} else {
			s.open = func() { k.Failed(cfg.Listen, nil) }
			k.server.Store(s)
			defer k.server.Store(nil)
			go func() { ended <- s.Run(ctx) }()
		}
	}
	for {
		select {
		case <-k.changed:
			if reflect.DeepEqual(k.Want(), cfg) {
				continue
			}
		case <-ctx.Done():
		case err := <-ended:
			if ctx.Err() != nil {
				return
			}
			k.Failed(cfg.Listen, err)
			timer := time.NewTimer(listenAgain)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-k.changed:
			case <-ctx.Done():
			}
			return
		}
		cancel()
		if cfg != nil {
			<-ended //nolint:errcheck // We have stopped it.
		}
		return
	}
}
