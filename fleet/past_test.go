package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/session"
)

// words are the past and the present of a gate, in short.
func (g Gate) words() string {
	var list []string
	for _, p := range append(g.Past, g.caused(time.Time{})) {
		text := p.State
		if p.Paused {
			text += " paused"
		}
		if p.Wave != "" {
			text += " " + p.Wave
		}
		list = append(list, text+" by "+p.By+p.Host)
	}
	return strings.Join(list, ", ")
}

// The gate of a rollout keeps who paused, resumed, retried or aborted it, and which host
// failed, also when another host refuses or fails afterwards.
func TestGate_KeepsWhoDidWhat(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		ctx := t.Context()
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// During the vote; then a host that learned of the vote by a call refuses.
		w.silent("web-09")
		w.hosts["web-01"].refuse[2] = "no such word"
		w.hosts["web-01"].stop()
		w.await("it to be gone", func() bool {
			list, err := Subscribers(ctx, w.desk, root)
			return err == nil && len(list) == 3
		})
		name := w.propose(2, Strategy{})
		do(Pause(ctx, w.desk, root, name, Order{By: "ann", Reason: "lunch"}))
		do(Resume(ctx, w.desk, root, name, Order{By: "bob"}))
		w.hosts["web-01"].start()
		state := w.awaitPhase(name, PhaseAborted)
		if got := state.Gate.words(); !strings.HasPrefix(got, "voting paused by ann, voting by bob, refused by web-01, closed by web-0") {
			t.Errorf("got %s", got)
		}
		if p := state.Gate.Past[0]; p.Reason != "lunch" || p.At.Before(state.Created) || p.At.After(state.GateAt.Time) {
			t.Errorf("got %+v, made %s, closed %s", p, state.Created, state.GateAt.Time)
		}
		// During the turns.
		delete(w.hosts["web-01"].refuse, 2)
		w.server.Delete(SubscriptionPath(root, "web-09"))
		w.hosts["web-02"].fail[3] = "exit status 1"
		name = w.propose(3, Strategy{Order: []string{"web-02"}})
		w.awaitPhase(name, PhaseHalted)
		delete(w.hosts["web-02"].fail, 3)
		do(Retry(ctx, w.desk, root, name, Order{By: "eve"}))
		state = w.awaitPhase(name, PhaseDone)
		got := state.Gate.words()
		for i := range 3 {
			got = strings.ReplaceAll(got, fmt.Sprintf("canary by web-%02d, halted", i), "canary by COORDINATOR, halted")
			got = strings.ReplaceAll(got, fmt.Sprintf("open all by web-%02d", i), "open all by COORDINATOR")
			got = strings.ReplaceAll(got, fmt.Sprintf("closed all by web-%02d", i), "closed all by COORDINATOR")
		}
		if want := "open canary by COORDINATOR, halted canary by web-02, open canary by eve, open all by COORDINATOR, closed all by COORDINATOR"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// A rollout that is aborted or closed is no longer paused.
func TestGate_EndsThePause(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		ctx := t.Context()
		for _, open := range []bool{false, true} {
			version := map[bool]int64{false: 2, true: 3}[open]
			if !open {
				w.silent("web-09")
			} else if err := w.server.Delete(SubscriptionPath(root, "web-09")); err != nil {
				t.Fatal(err)
			}
			name := w.propose(version, Strategy{Canary: 1, Bake: Duration(time.Hour)})
			if open {
				w.await("the canary", func() bool {
					state, err := Read(ctx, w.desk, root, name)
					return err == nil && state.Counts().Done == 1
				})
			}
			for _, order := range []func(context.Context, *session.Session, string, string, Order) error{Pause, Abort} {
				if err := order(ctx, w.desk, root, name, Order{By: "ann", Reason: "why"}); err != nil {
					t.Fatal(err)
				}
			}
			state, err := Head(ctx, w.desk, root, name)
			if err != nil || state.Gate.Paused || state.Gate.State != map[bool]string{false: GateClosed, true: GateHalted}[open] {
				t.Errorf("got %+v, %v", state.Gate, err)
			}
		}
	})
}

// The past of a gate is bounded, and a repeated order is one.
func TestGate_PastIsBounded(t *testing.T) {
	g := Gate{State: GateVoting}
	long := strings.Repeat("ä", 4000)
	at := time.Now()
	for i := range 60 {
		next := g
		next.Paused, next.By, next.Reason = i%2 == 0, fmt.Sprint("op", i), long
		at = at.Add(time.Second)
		g = next.after(g, at)
		g = next.after(g, at.Add(time.Millisecond))
	}
	if len(g.Past) != 20 || g.Past[19].By != "op58" || g.Past[0].By != "op39" || !g.Past[19].At.Equal(at) {
		t.Errorf("got %d: %+v", len(g.Past), g.words())
	}
	g.Reason = ""
	if n := len(encode(g)); n > 16<<10 {
		t.Errorf("the gate has %d bytes", n)
	}
}
