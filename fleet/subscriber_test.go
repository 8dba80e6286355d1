package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// Of two agents with one id one has the subscription, and the other has it when
// the first has left; each knows.
func TestSubscriber_OneOfTwo(t *testing.T) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		type agent struct {
			*Subscriber
			stop func()
		}
		begin := func(version int64) agent {
			s := join(t, z)
			b := NewSubscriber(SubscriberConfig{Path: "/c", ID: "one"})
			b.Report(version, StateOK, nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.Run(ctx, s) }()
			after(2 * subscribeAgain)
			return agent{b, func() { cancel(); must(t, <-done); must(t, s.Close()) }}
		}
		check := func(what string, version int64, first, second bool, agents ...agent) {
			t.Helper()
			for i, want := range []bool{first, second} {
				if mine, _ := agents[i].Owned(); mine != want {
					t.Errorf("%s: agent %d owns it: %v", what, i+1, mine)
				}
			}
			s := join(t, z)
			defer s.Close()
			list, err := Subscribers(t.Context(), s, "/c")
			if err != nil || len(list) != 1 || list[0].Version != version {
				t.Errorf("%s: %+v, %v", what, list, err)
			}
		}
		a := begin(1)
		b := begin(2)
		check("both", 1, true, false, a, b)
		b.Report(3, StateOK, nil)
		a.Report(4, StateOK, nil)
		after(2 * subscribeAgain)
		check("both reported", 4, true, false, a, b)
		_, moved := b.Owned()
		a.stop()
		<-moved
		after(2 * subscribeAgain)
		check("the first has left", 3, false, true, a, b)
		b.stop()
		mine, _ := b.Owned()
		if mine {
			t.Error("the second has left and owns it")
		}
		if z.Exists(SubscriptionPath("/c", "one")) {
			t.Error("it was left")
		}
	})
}

// The subscriber reports a persistent znode in the way, and looks at it again.
func TestSubscriber_PersistentInTheWay(t *testing.T) {
	bubble(t, func(t *testing.T, z *memzk.Server) {
		s := join(t, z)
		path := SubscriptionPath("/c", "one")
		must(t, s.CreateParents(t.Context(), path))
		must(t, z.Create(path, []byte("{}")))
		b := NewSubscriber(SubscriberConfig{Path: "/c", ID: "one"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx, s) }()
		after(2 * subscribeAgain)
		if mine, _ := b.Owned(); mine {
			t.Error("it owns what is persistent")
		}
		must(t, z.Delete(path))
		_, moved := b.Owned()
		<-moved
		if mine, _ := b.Owned(); !mine {
			t.Error("it does not own its own")
		}
		cancel()
		must(t, <-done)
		must(t, s.Close())
	})
}

// Whatever number of hosts ready gives, a report is written in the end.
func TestSubscriber_SpreadIsBounded(t *testing.T) {
	b := NewSubscriber(SubscriberConfig{Path: "/c", ID: "one"})
	b.own(true)
	for _, hosts := range []int{-1 << 62, -1, 0, 1 << 40, 1 << 62} {
		b.Spread(hosts)
		for range 20 {
			if d := b.delay(); d < 0 || d > time.Hour {
				t.Fatalf("%d hosts: a delay of %s", hosts, d)
			}
		}
	}
}
