package recipe

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

type settings struct {
	Limit int64    `json:"limit"`
	Hosts []string `json:"hosts,omitempty"`
}

// Clients update a struct and lose replies and connections: each Update that returned nil
// counts once, and none that is not known to be applied counts twice.
func TestValue_TypedRandom(t *testing.T) {
	testhelp.Seeds(t, 500*time.Millisecond, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, w *world) {
			r := rand.New(rand.NewPCG(seed, 43))
			var done, unknown atomic.Int64
			var wg sync.WaitGroup
			for _, id := range []string{"a", "b", "c"} {
				v := NewValue[settings](w.dial(id), "/v")
				wg.Go(func() {
					for range 10 {
						_, err := v.Update(t.Context(), func(now settings) (settings, error) {
							now.Limit++
							return now, nil
						})
						switch {
						case err == nil:
							done.Add(1)
						case session.ActionFor(err) != session.Decide:
							unknown.Add(1)
							return
						default:
							t.Errorf("seed %d: %v", seed, err)
						}
					}
				})
			}
			for range 15 {
				w.LoseReply(memzk.AnyOp, 1+r.IntN(9), r.IntN(2) == 0)
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
			wg.Wait()
			w.ClearFaults()
			now, err := NewValue[settings](w.dial("d"), "/v").Get(t.Context())
			must(t, err)
			if n := now.Data.Limit; n < done.Load() || n > done.Load()+unknown.Load() {
				t.Errorf("seed %d: %d after %d updates and %d unknown ones", seed, n, done.Load(), unknown.Load())
			}
		})
	})
}

// Data that are not a T, a T that is no JSON, an error of the caller, and a follower.
func TestValue_Typed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, s := t.Context(), w.dial("a")
		v := NewValue[settings](s, "/v")
		none, err := v.Get(ctx)
		must(t, err)
		if ok, err := v.CompareAndSet(ctx, none, settings{Limit: 1, Hosts: []string{"x"}}); !ok || err != nil {
			t.Error(ok, err)
		}
		n, _ := w.Get("/v")
		if string(n.Data) != `{"limit":1,"hosts":["x"]}` {
			t.Errorf("%s", n.Data)
		}
		own := errors.New("own")
		if _, err := v.Update(ctx, func(settings) (settings, error) { return settings{}, own }); !errors.Is(err, own) {
			t.Error(err)
		}
		run, stop := context.WithCancelCause(ctx)
		seen, ended := make(chan int64, 9), make(chan error, 1)
		go func() { ended <- v.Follow(run, func(now Versioned[settings]) { seen <- now.Data.Limit }) }()
		if got := <-seen; got != 1 {
			t.Error(got)
		}
		must(t, w.Set("/v", []byte("{")))
		if err := <-ended; !errors.Is(err, ErrFormat) {
			t.Errorf("the follower ended with %v", err)
		}
		stop(nil)
		if _, err := v.Get(ctx); !errors.Is(err, ErrFormat) {
			t.Error(err)
		}
		bad := NewValue[func()](s, "/f")
		if _, err := bad.CompareAndSet(ctx, Versioned[func()]{}, func() {}); !errors.Is(err, ErrFormat) {
			t.Error(err)
		}
	})
}
