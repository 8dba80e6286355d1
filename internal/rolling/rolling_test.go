package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// bed is hosts of a fleet in virtual time.
type bed struct {
	t   *testing.T
	srv *memzk.Server
}

func bubble(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t, memzk.New(memzk.Options{TickTime: time.Second})}
		defer b.srv.Close()
		f(t, b)
	})
}

func (b *bed) dial(host string) *session.Session {
	b.t.Helper()
	s, err := session.Dial(b.t.Context(), session.Config{Servers: []string{host + ":2181"}, Timeout: 12 * time.Second, Dial: b.srv.Dial})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}

// begin asks for a permit in the background; the channel gets it.
func (b *bed) begin(ctx context.Context, s *session.Session, host, permits string) chan *Permit {
	got := make(chan *Permit, 1)
	go func() {
		if p, err := Acquire(ctx, s, Config{Agent: host, Bundle: "web", Permits: permits}); err == nil {
			got <- p
		}
	}()
	synctest.Wait()
	return got
}

// only gives a session as that of the moment.
func only(s *session.Session) func(context.Context) (*session.Session, error) {
	return func(context.Context) (*session.Session, error) { return s, s.Context().Err() }
}

// failure is a halt of the bundle web by a host.
func failure(host, reason string) *Halt {
	return &Halt{Bundle: "web", Host: host, Reason: reason, Time: time.Now().UTC()}
}

func (b *bed) release(p *Permit, failed *Halt) {
	b.t.Helper()
	if err := p.Release(b.t.Context(), only(p.s), failed); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

// TestAcquire_HaltStopsEveryStart has four hosts and one permit. The first one
// fails: no other host starts until the halt is lifted.
func TestAcquire_HaltStopsEveryStart(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		var hosts []chan *Permit
		for i := range 4 {
			host := fmt.Sprintf("h%d", i)
			hosts = append(hosts, b.begin(t.Context(), b.dial(host), host, "1"))
		}
		b.release(<-hosts[0], failure("h0", "the port does not answer"))
		time.Sleep(time.Hour)
		for i, h := range hosts[1:] {
			if len(h) > 0 {
				t.Errorf("host %d started after the halt", i+1)
			}
		}
		desk := b.dial("desk")
		halts, err := Halts(t.Context(), desk)
		if err != nil || len(halts) != 1 || halts[0].Bundle != "web" || halts[0].Host != "h0" || halts[0].Reason != "the port does not answer" {
			t.Errorf("got %+v, %v", halts, err)
		}
		if err := Clear(t.Context(), desk, "web", "ann"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		started := 0
		for _, h := range hosts[1:] {
			started += len(h)
		}
		if started != 1 {
			t.Errorf("%d hosts started after the halt was lifted, want 1", started)
		}
		if err := Clear(t.Context(), desk, "web", "ann"); !errors.Is(err, session.ErrNoNode) {
			t.Errorf("got %v for a bundle that is not halted", err)
		}
	})
}

// TestStart_HaltBetweenTheLookAndTheLease puts the halt where only the
// transaction sees it: after the host has looked, while it waits for its lease.
func TestStart_HaltBetweenTheLookAndTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		s := b.dial("h1")
		first := <-b.begin(t.Context(), b.dial("h0"), "h0", "1")
		second := b.begin(t.Context(), s, "h1", "1")
		if err := Stop(t.Context(), s, *failure("h9", "bad")); err != nil {
			t.Fatal(err)
		}
		b.release(first, nil)
		if len(second) != 0 {
			t.Error("a host started although the halt stood")
		}
	})
}

// TestAcquire_ChangedPermits: a new number of permits counts as soon as no host holds
// one, and not before.
func TestAcquire_ChangedPermits(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		old := <-b.begin(t.Context(), b.dial("h0"), "h0", "1")
		var hosts []chan *Permit
		for i := range 3 {
			host := fmt.Sprintf("n%d", i)
			hosts = append(hosts, b.begin(t.Context(), b.dial(host), host, "2"))
		}
		if len(hosts[0])+len(hosts[1])+len(hosts[2]) != 0 {
			t.Error("a host started beside the holder of the only permit")
		}
		b.release(old, nil)
		if got := len(hosts[0]) + len(hosts[1]) + len(hosts[2]); got != 2 {
			t.Errorf("%d hosts started with two permits", got)
		}
	})
}

// TestAcquire_ShareOfTheHostsThatAreThere counts a share anew at each take.
func TestAcquire_ShareOfTheHostsThatAreThere(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		hosts := func(n int) (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			for i := range n {
				host := fmt.Sprintf("m%d", i)
				s := b.dial(host)
				go func() { _ = Hosts("web", host, nil).Run(ctx, s) }()
			}
			synctest.Wait()
			return func() { cancel(); synctest.Wait() }
		}
		count := func() int {
			ctx, cancel := context.WithCancel(t.Context())
			var taken []*Permit
			for i := range 8 {
				host := fmt.Sprintf("h%d", i)
				got := b.begin(ctx, b.dial(host), host, "50%")
				if len(got) == 1 {
					taken = append(taken, <-got)
				}
			}
			cancel() // the others wait no longer
			synctest.Wait()
			for _, p := range taken {
				b.release(p, nil)
			}
			return len(taken)
		}
		end := hosts(4)
		if n := count(); n != 2 {
			t.Errorf("%d of 4 hosts may start, want 2", n)
		}
		end()
		synctest.Wait()
		end = hosts(6)
		if n := count(); n != 3 {
			t.Errorf("%d of 6 hosts may start, want 3", n)
		}
		end()
	})
}

func TestReserved(t *testing.T) {
	for name, want := range map[string]bool{"web": false, "web-halt": true, "web-hosts": true, "halted": false} {
		if Reserved(name) != want {
			t.Errorf("%s: got %v", name, !want)
		}
	}
}

// TestRelease_HaltsAfterAnOutage: a host fails while it cannot reach ZooKeeper. It
// halts the others when it can, in the session that it has then.
func TestRelease_HaltsAfterAnOutage(t *testing.T) {
	for name, outage := range map[string]func(*memzk.Server){
		"the session goes on": func(srv *memzk.Server) { srv.Stop(); time.Sleep(10 * time.Minute); srv.Start() },
		"the session ends":    func(srv *memzk.Server) { srv.Partition("h0:2181"); time.Sleep(10 * time.Minute); srv.Heal() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				m, err := session.New(session.Config{Servers: []string{"h0:2181"}, Timeout: 12 * time.Second, Dial: b.srv.Dial})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- m.Run(ctx) }()
				s, err := m.Session(ctx)
				if err != nil {
					t.Fatal(err)
				}
				first := <-b.begin(ctx, s, "h0", "1")
				released := make(chan error, 1)
				go func() {
					time.Sleep(time.Minute)
					released <- first.Release(ctx, m.Session, failure("h0", "the port does not answer"))
				}()
				outage(b.srv)
				time.Sleep(time.Minute)
				if len(released) == 0 {
					t.Error("the host has not given its permit back")
				} else if err := <-released; err != nil && s.Context().Err() == nil {
					t.Error(err)
				}
				late := b.begin(t.Context(), b.dial("h9"), "h9", "1")
				if time.Sleep(time.Minute); len(late) > 0 {
					t.Error("a host starts, although another has failed")
				}
				if err := Clear(ctx, b.dial("desk"), "web", "ann"); err != nil {
					t.Error(err)
				}
				if synctest.Wait(); len(late) == 0 {
					t.Error("no host starts after the halt was lifted")
				}
				cancel()
				<-ended
			})
		})
	}
}

// Who lifted a halt stays known, within a bound, whatever reply is lost.
func TestClear_KeepsWho(t *testing.T) {
	for n := range 6 {
		bubble(t, func(t *testing.T, b *bed) {
			desk := b.dial("desk")
			if err := desk.CreateParents(t.Context(), path("web")); err != nil {
				t.Fatal(err)
			}
			for i := range maxLifted + 5 {
				time.Sleep(time.Second)
				if err := Stop(t.Context(), desk, *failure("h1", fmt.Sprint("exit status ", i))); err != nil {
					t.Fatal(err)
				}
				if i == maxLifted {
					b.srv.LoseReply(jute.OpMulti, 1+n/2, n%2 == 0)
				}
				if err := Clear(t.Context(), desk, "web", fmt.Sprint("op", i)); err != nil {
					t.Fatal(err)
				}
				if err := Clear(t.Context(), desk, "web", "late"); !errors.Is(err, session.ErrNoNode) {
					t.Errorf("without a halt: %v", err)
				}
			}
			list, err := LiftedHalts(t.Context(), desk)
			if err != nil || len(list) != maxLifted {
				t.Fatalf("%d are noted, %v", len(list), err)
			}
			for i, l := range list {
				if l.By != fmt.Sprint("op", i+5) || l.Reason != fmt.Sprint("exit status ", i+5) || l.Host != "h1" || l.At.Before(l.Time) {
					t.Errorf("got %+v", l)
				}
			}
		})
	}
}

// A halt is lifted by another and stands again for another reason, before any request of
// a Clear. Each halt is noted once, or still stands.
func TestClear_AnotherHaltMeanwhile(t *testing.T) {
	for n, met := 1, true; met; n++ {
		bubble(t, func(t *testing.T, b *bed) {
			desk, late := b.dial("desk"), b.dial("late")
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(desk.CreateParents(t.Context(), path("web")))
			must(Stop(t.Context(), desk, *failure("h1", "first")))
			requests, done := 0, make(chan struct{})
			met = false
			b.srv.Hold(func(h memzk.Held) <-chan struct{} {
				if h.Addr != "late:2181" {
					return nil
				}
				if requests++; requests != n {
					return nil
				}
				met = true
				go func() {
					defer close(done)
					must(Clear(t.Context(), desk, "web", "ann"))
					must(Stop(t.Context(), desk, *failure("h2", "second")))
				}()
				return done
			})
			must(Clear(t.Context(), late, "web", "late"))
			list, err := LiftedHalts(t.Context(), desk)
			must(err)
			halts, err := Halts(t.Context(), desk)
			must(err)
			var all []string
			for _, l := range list {
				all = append(all, l.Reason)
			}
			for _, h := range halts {
				all = append(all, h.Reason)
			}
			if want := []string{"first", "second"}; met && !slices.Equal(all, want) {
				t.Errorf("before request %d: the halts are %v", n, all)
			}
		})
	}
}

// TestStop_NotAfterItWasLifted: a host was killed between its halt and its note of it,
// and tells of its failure again after somebody lifted the halt.
func TestStop_NotAfterItWasLifted(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		s := b.dial("h1")
		if err := s.CreateParents(t.Context(), path("web")); err != nil {
			t.Fatal(err)
		}
		h := failure("h1", "bad")
		for _, step := range []func() error{
			func() error { return Stop(t.Context(), s, *h) },
			func() error { return Clear(t.Context(), s, "web", "ann") },
			func() error { return Stop(t.Context(), s, *h) },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		if halts, err := Halts(t.Context(), s); err != nil || len(halts) > 0 {
			t.Errorf("got %v, %v", halts, err)
		}
	})
}

// A share of the hosts is rounded down, so that no more hosts reload than it allows, and
// is at least one.
func TestPermits_ShareIsRoundedDown(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		s := b.dial("h0")
		for i := range 19 {
			if err := b.srv.Create(fmt.Sprintf("%s%s/h%d", path("web"), hostsEnd, i), nil); err != nil {
				t.Fatal(err)
			}
		}
		for text, want := range map[string]int{"10%": 1, "15%": 2, "99%": 18, "100%": 19, "1%": 1, "3": 3} {
			if got, err := permits(t.Context(), s, "web", text); err != nil || got != want {
				t.Errorf("%s of 19 hosts: got %d %v, want %d", text, got, err, want)
			}
		}
	})
}
