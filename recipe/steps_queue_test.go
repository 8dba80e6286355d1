package recipe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// tally is what became of the bodies of a queue.
type tally struct {
	mu      sync.Mutex // mu guards the rest
	put     []string   // whose Put returned nil
	taken   map[string]int
	inDoubt string // its Ack may have been applied
}

func (c *tally) wasPut(body string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put = append(c.put, body)
}

func (c *tally) wasTaken(body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken[string(body)]++
}

// stepQueue is what the queues have in common.
type stepQueue interface {
	Take(ctx context.Context) ([]byte, error)
	TryTake(ctx context.Context) ([]byte, error)
	Reserve(ctx context.Context) (*Reservation, error)
	Len(ctx context.Context) (int, error)
}

var stepQueues = []struct {
	name string
	open func(s *session.Session) (stepQueue, func(ctx context.Context, body string) error)
}{
	{"fifo", func(s *session.Session) (stepQueue, func(context.Context, string) error) {
		q := NewQueue(s, QueueConfig{Path: "/q"})
		return q, func(ctx context.Context, body string) error { return q.Put(ctx, []byte(body)) }
	}},
	{"priority", func(s *session.Session) (stepQueue, func(context.Context, string) error) {
		q := NewPriorityQueue(s, PriorityQueueConfig{Path: "/q", Reserve: true})
		return q, func(ctx context.Context, body string) error { return q.Put(ctx, []byte(body), int(body[0]-'0')) }
	}},
	{"id", func(s *session.Session) (stepQueue, func(context.Context, string) error) {
		q := NewIDQueue(s, QueueConfig{Path: "/q"})
		return q, func(ctx context.Context, body string) error { return q.Put(ctx, body[:1], []byte(body)) }
	}},
	{"delay", func(s *session.Session) (stepQueue, func(context.Context, string) error) {
		q := NewDelayQueue(s, QueueConfig{Path: "/q"})
		return q, func(ctx context.Context, body string) error {
			return q.Put(ctx, []byte(body), time.Now().Add(-time.Duration(body[0])*time.Second))
		}
	}},
}

// stepItems is how many bodies a producer puts.
const stepItems = 3

// produce puts bodies until its process dies.
func (c *tally) produce(t *testing.T, p *process, put func(context.Context, string) error) {
	for i := range stepItems {
		body := fmt.Sprintf("%d-body", i)
		if err := put(p.ctx, body); err == nil {
			c.wasPut(body)
		} else if p.alive() {
			t.Errorf("put: %v", err)
		}
	}
}

// drain takes what is there, as a process that comes after all others.
func (c *tally) drain(t *testing.T, w *world, q stepQueue) {
	t.Helper()
	for {
		body, err := q.TryTake(t.Context())
		if errors.Is(err, ErrEmpty) {
			break
		}
		must(t, err)
		c.wasTaken(body)
	}
	if n, err := q.Len(t.Context()); n != 0 || err != nil {
		t.Errorf("length at the end: got %d, %v", n, err)
	}
	if left := w.leftovers("/q"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// check finds bodies that were taken twice, and those that were put and never
// taken, of which lost may be.
func (c *tally) check(t *testing.T, lost int) {
	t.Helper()
	for body, n := range c.taken {
		if n > 1 {
			t.Errorf("%s was taken %d times", body, n)
		}
	}
	for _, body := range c.put {
		if c.taken[body] == 0 && body != c.inDoubt {
			lost--
		}
	}
	if lost < 0 {
		t.Errorf("put %v and taken %v: too many were lost", c.put, c.taken)
	}
}

// Every reply to producers and consumers is lost once, before and after the
// request was applied: take delivers nothing twice and loses nothing.
func TestQueue_ReplyLostAtEveryStep(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, kind := range stepQueues {
		t.Run(kind.name, func(t *testing.T) {
			first, stride := testhelp.Steps()
			for n := first; n < 200; n += stride {
				hit := false
				for _, before := range []bool{true, false} {
					bubble(t, func(t *testing.T, w *world) {
						struck := w.LoseReply(memzk.AnyOp, n, before)
						useQueueByTwo(t, w, kind.open)
						select {
						case <-struck:
							hit = true
						default:
						}
					})
				}
				if !hit {
					return
				}
				if t.Failed() {
					t.Fatalf("reply %d lost", n)
				}
			}
			t.Error("the queue's users do not end")
		})
	}
}

// useQueueByTwo has one producer and two consumers, one of which reserves.
func useQueueByTwo(t *testing.T, w *world, open func(*session.Session) (stepQueue, func(context.Context, string) error)) {
	t.Helper()
	c := &tally{taken: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := stepItems
	got := func(body []byte) {
		c.wasTaken(body)
		c.mu.Lock()
		defer c.mu.Unlock()
		if left--; left == 0 {
			cancel()
		}
	}
	var wg sync.WaitGroup
	p, one, two := w.start(t, "p", 0, false), w.start(t, "c0", 0, false), w.start(t, "c1", 0, false)
	wg.Go(func() {
		_, put := open(p.s)
		c.produce(t, p, put)
	})
	wg.Go(func() {
		q, _ := open(one.s)
		for ctx.Err() == nil {
			if body, err := q.Take(ctx); err == nil {
				got(body)
			} else if ctx.Err() == nil {
				t.Errorf("take: %v", err)
				return
			}
		}
	})
	wg.Go(func() {
		q, _ := open(two.s)
		for ctx.Err() == nil {
			r, err := q.Reserve(ctx)
			if err == nil {
				if err = r.Ack(t.Context()); err == nil {
					got(r.Body())
				}
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("reserve and ack: %v", err)
				return
			}
		}
	})
	wg.Wait()
	settle() // until claims that were given up in the background are gone
	q, _ := open(p.s)
	c.drain(t, w, q)
	c.check(t, 0)
}

// A producer is killed at every request: what Put returned nil for is there,
// nothing is there twice.
func TestQueue_ProducerKilledAtEveryStep(t *testing.T) {
	for _, kind := range stepQueues {
		t.Run(kind.name, func(t *testing.T) {
			everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
				c := &tally{taken: map[string]int{}}
				p := w.start(t, "p", n, before)
				_, put := kind.open(p.s)
				c.produce(t, p, put)
				_ = p.s.Close()
				settle()
				q, _ := kind.open(w.dial("last"))
				c.drain(t, w, q)
				c.check(t, 0)
				return !p.alive()
			})
		})
	}
}

// A consumer is killed at every request. With Take the one item that it was
// taking may be lost, none is given twice; with Reserve none is lost, and only
// the item whose Ack was under way may have been worked on twice.
func TestQueue_ConsumerKilledAtEveryStep(t *testing.T) {
	for _, kind := range stepQueues {
		for _, how := range []string{"take", "reserve"} {
			if testhelp.NotToday(kind.name+how, 3) {
				continue
			}
			t.Run(kind.name+"/"+how, func(t *testing.T) {
				everyStep(t, func(t *testing.T, w *world, n int, before bool) bool {
					c := &tally{taken: map[string]int{}}
					first := w.start(t, "first", 0, false)
					q, put := kind.open(first.s)
					c.produce(t, first, put)
					p := w.start(t, "victim", n, before)
					victim, _ := kind.open(p.s)
					if how == "take" {
						takeAll(p, victim, c)
					} else {
						reserveAll(p, victim, c)
					}
					_ = p.s.Close()
					settle() // until the claims of the dead are gone
					c.drain(t, w, q)
					lost := 0
					if how == "take" && !p.alive() {
						lost = 1
					}
					c.check(t, lost)
					return !p.alive()
				})
			})
		}
	}
}

func takeAll(p *process, q stepQueue, c *tally) {
	for range stepItems {
		if body, err := q.Take(p.ctx); err == nil {
			c.wasTaken(body)
		}
	}
}

// reserveAll counts an item when its Ack has returned nil.
func reserveAll(p *process, q stepQueue, c *tally) {
	for range stepItems {
		r, err := q.Reserve(p.ctx)
		if err != nil {
			return
		}
		switch err = r.Ack(p.ctx); {
		case err == nil:
			c.wasTaken(r.Body())
		case errors.Is(err, session.ErrUnknown):
			c.mu.Lock()
			c.inDoubt = string(r.Body())
			c.mu.Unlock()
		}
	}
}
