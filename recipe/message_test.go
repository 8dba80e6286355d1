package recipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// An item of a delay queue is delivered when it is due, not before, to one that
// waits: also when an earlier one is put behind it.
func TestDelayQueue_DeliversInTime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := NewDelayQueue(w.dial("a"), QueueConfig{Path: "/q"})
		began := time.Now()
		must(t, q.Put(t.Context(), []byte("late"), began.Add(10*time.Minute)))
		for name, err := range map[string]error{
			"take":    second(q.TryTake(t.Context())),
			"reserve": second(q.TryReserve(t.Context())),
			"peek":    second(q.Peek(t.Context())),
		} {
			if !errors.Is(err, ErrEmpty) {
				t.Errorf("%s of what is not due: got %v", name, err)
			}
		}
		go func() {
			time.Sleep(time.Minute)
			if err := NewDelayQueue(w.dial("b"), QueueConfig{Path: "/q"}).Put(t.Context(), []byte("early"), began.Add(2*time.Minute)); err != nil {
				t.Error(err)
			}
		}()
		for _, want := range []struct {
			body string
			due  time.Duration
		}{{"early", 2 * time.Minute}, {"late", 10 * time.Minute}} {
			r, err := q.Reserve(t.Context())
			must(t, err)
			if took := time.Since(began); string(r.Body()) != want.body || took < want.due || took > want.due+time.Second {
				t.Errorf("got %q after %v, want %q after %v", r.Body(), took, want.body, want.due)
			}
			must(t, r.Ack(t.Context()))
		}
		must(t, q.Put(t.Context(), []byte("x"), time.Time{}))
		list, err := q.Items(t.Context(), 0)
		if err != nil || len(list) != 1 || !list[0].Due.IsZero() {
			t.Errorf("items %+v, %v", list, err)
		}
		if body, err := q.TryTake(t.Context()); string(body) != "x" || err != nil {
			t.Errorf("a time in the past: %q, %v", body, err)
		}
	})
}

// Who waits for the time of an item is woken by its own context.
func TestDelayQueue_WaitEndsWithTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := NewDelayQueue(w.dial("a"), QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), []byte("late"), time.Now().Add(time.Hour)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := q.Take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestIDQueue_Remove(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := NewIDQueue(w.dial("a"), QueueConfig{Path: "/q"})
		for i, id := range []string{"a", "b/c", "a", "b_c", "a"} {
			must(t, q.Put(t.Context(), id, fmt.Append(nil, i)))
		}
		for _, id := range []string{"", "a|b"} {
			if err := q.Put(t.Context(), id, nil); !errors.Is(err, ErrFormat) {
				t.Errorf("id %q: got %v", id, err)
			}
		}
		list, err := q.Items(t.Context(), 2)
		if err != nil || len(list) != 2 || list[0].ID != "a" || list[1].ID != "b_c" {
			t.Errorf("items %+v, %v", list, err)
		}
		r, err := q.Reserve(t.Context())
		must(t, err)
		if n, err := q.Remove(t.Context(), "a"); n != 2 || err != nil {
			t.Errorf("removed %d, %v, want the two that nobody has reserved", n, err)
		}
		if n, err := q.Remove(t.Context(), "b/c"); n != 2 || err != nil {
			t.Errorf("removed %d, %v", n, err)
		}
		must(t, r.Ack(t.Context()))
		if n, err := q.Len(t.Context()); n != 0 || err != nil {
			t.Errorf("%d are left, %v", n, err)
		}
	})
}

// What is no message of one is passed over, and blocks nothing.
func TestMessages_BadFrames(t *testing.T) {
	good := packMessage([]byte("good"))
	for _, bad := range [][]byte{
		nil, []byte("text"), good[:len(good)-1], good[:9], good[:5], append(bytes.Clone(good), 2),
		append(bytes.Clone(good[:len(good)-1]), packMessage([]byte("two"))[4:]...),
		{0, 1, 0, 1, 1, 0xff, 0xff, 0xff, 0xff, 2},
		{0, 1, 0, 1, 2},
		{0, 1, 0, 2, 1, 0, 0, 0, 0, 2},
	} {
		if body, err := unpackMessage(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("% x: got %q, %v", bad, body, err)
		}
	}
	for _, body := range []string{"", "x", "a longer one"} {
		if got, err := unpackMessage(packMessage([]byte(body))); string(got) != body || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, body)
		}
	}
	bubble(t, func(t *testing.T, w *world) {
		s := w.dial("a")
		q := NewIDQueue(s, QueueConfig{Path: "/q"})
		must(t, s.CreateParents(t.Context(), "/q/x"))
		_, _, err := s.Create(t.Context(), "/q/queue-|a|", []byte("text"), session.PersistentSequential)
		must(t, err)
		must(t, q.Put(t.Context(), "b", []byte("good")))
		if body, err := q.Peek(t.Context()); string(body) != "good" || err != nil {
			t.Errorf("peek: %q, %v", body, err)
		}
		r, err := q.TryReserve(t.Context())
		must(t, err)
		must(t, r.Return(t.Context()))
		if body, err := q.TryTake(t.Context()); string(body) != "good" || err != nil {
			t.Errorf("take: %q, %v", body, err)
		}
	})
}

// A reserved message is written back as it was, so another client reads it after
// its reserver has died.
func TestMessages_ReserveKeepsTheFrame(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		dead := w.dial("dead")
		q := NewIDQueue(w.dial("a"), QueueConfig{Path: "/q"})
		must(t, q.Put(t.Context(), "id", []byte("body")))
		r, err := NewIDQueue(dead, QueueConfig{Path: "/q"}).Reserve(t.Context())
		must(t, err)
		w.ExpireSession(dead.ID())
		synctest.Wait()
		if got := w.data(r.Path()); got != string(packMessage([]byte("body"))) {
			t.Errorf("the znode holds %q", got)
		}
		again, err := q.Reserve(t.Context())
		must(t, err)
		if string(again.Body()) != "body" || again.Attempts() != 2 {
			t.Errorf("got %q at attempt %d", again.Body(), again.Attempts())
		}
	})
}

// Curator's queues put and take on the same paths, and honour claims.
func TestInterop_CuratorMessages(t *testing.T) {
	testhelp.InTurn(t, 2)
	ctx, s, root := testContext(t), dialReal(t), zktest.Root(t)
	p := peers.Curator(t, zktest.Shared(t).Addr(), peers.Quick)
	ids := NewIDQueue(s, QueueConfig{Path: root + "/id"})
	delayed := NewDelayQueue(s, QueueConfig{Path: root + "/delay"})

	for _, body := range []string{"one", "two"} {
		p.Tell(t, "put id %s/id %s", root, body)
		p.Expect(ctx, t, "put")
	}
	if body, err := ids.Take(ctx); string(body) != "one" || err != nil {
		t.Errorf("took %q, %v", body, err)
	}
	if n, err := ids.Remove(ctx, "id/two"); n != 1 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	must(t, ids.Put(ctx, "x/y", []byte("three")))
	p.Tell(t, "remove %s/id x_y", root) // Curator does not clean an id that it removes
	p.Expect(ctx, t, "removed 1")

	for _, body := range []string{"multi", "late", "soon"} {
		p.Tell(t, "put delay %s/delay %s", root, body)
		p.Expect(ctx, t, "put")
	}
	r, err := delayed.Reserve(ctx)
	must(t, err)
	if string(r.Body()) != "soon" {
		t.Errorf("reserved %q", r.Body())
	}
	if list, err := delayed.Items(ctx, 0); err != nil || len(list) != 2 || // "multi" is passed over
		time.Until(list[1].Due) < 50*time.Minute {
		t.Errorf("items %+v, %v", list, err)
	}
	if n, err := delayed.Len(ctx); n != 3 || err != nil {
		t.Errorf("%d items, %v", n, err)
	}
	p.Tell(t, "consume delay %s/delay", root) // not what ours has reserved
	p.Expect(ctx, t, "consumes")
	p.Expect(ctx, t, "got multi")
	p.Expect(ctx, t, "got multi")
	must(t, delayed.Put(ctx, []byte("now"), time.Now()))
	p.Expect(ctx, t, "got now")
	p.Silent(t)
	must(t, r.Ack(ctx))
	p.Tell(t, "release delay")
	p.Expect(ctx, t, "released delay")
}
