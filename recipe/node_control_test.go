package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/keeper"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// helm is a control that a test steers.
type helm struct {
	mu    sync.Mutex // guards what follows
	want  keeper.Want
	err   error
	state keeper.State
	wake  chan struct{}
}

func newHelm(data string) *helm {
	return &helm{want: keeper.Want{Data: []byte(data)}, wake: make(chan struct{}, 1)}
}

func (h *helm) control() *keeper.Control {
	return &keeper.Control{
		Wake: h.wake,
		Want: func(keeper.State) (keeper.Want, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.want, h.err
		},
		Changed: func(s keeper.State) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.state = s
		},
	}
}

func (h *helm) set(w keeper.Want, err error) {
	h.mu.Lock()
	h.want, h.err = w, err
	h.mu.Unlock()
	h.wake <- struct{}{}
	settle()
}

func (h *helm) is() keeper.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// A znode with a sequence is found after a lost reply, by name and by its data,
// with and without a server that lists what a session owns.
func TestNode_SequenceAfterALostReply(t *testing.T) {
	for i := range 8 {
		before, old, mine := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("before=%v old=%v mine=%v", before, old, mine), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				s := w.dial("a")
				if old {
					w.RefuseWith(jute.OpGetEphemerals, jute.ErrCodeUnimplemented)
				}
				other, _, err := s.Create(t.Context(), "/g/m_other", nil, session.Ephemeral)
				if errors.Is(err, session.ErrNoNode) {
					must(t, s.CreateParents(t.Context(), "/g/m_other"))
					other, _, err = s.Create(t.Context(), "/g/m_other", nil, session.Ephemeral)
				}
				must(t, err)
				seq := &keeper.Sequence{}
				if mine {
					seq.Mine = func(_ string, data []byte) bool { return string(data) == "one" }
				}
				w.LoseReply(jute.OpCreate2, 1, before)
				h := newHelm("one")
				n := keep(t, s, NodeConfig{Path: "/g/m_", Internal: keeper.Config{Sequence: seq, Control: h.control()}})
				settle()
				if got := below(w, "/g"); len(got) != 2 {
					t.Fatalf("got %v, want %s and one of the node", got, other)
				}
				if st := h.is(); !st.Owned || !strings.HasPrefix(st.Path, "/g/m_0") || st.Adopted == before {
					t.Errorf("state %+v", st)
				}
				if path, err := n.Find(t.Context(), s); err != nil || path != h.is().Path {
					t.Errorf("found %s, %v", path, err)
				}
				first := h.is().Path
				w.DropConnections()
				settle()
				if got := h.is(); got.Path != first || len(below(w, "/g")) != 2 {
					t.Errorf("after a reconnect: %+v, %v", got, below(w, "/g"))
				}
				h.set(keeper.Want{Absent: true}, nil)
				if got := below(w, "/g"); len(got) != 1 || h.is().Owned || h.is().Path != "" {
					t.Errorf("absent: got %v, %+v", got, h.is())
				}
				h.set(keeper.Want{Data: []byte("two")}, nil)
				if got := h.is(); len(below(w, "/g")) != 2 || w.data(got.Path) != "two" {
					t.Errorf("wanted again: got %v, %+v", below(w, "/g"), got)
				}
			})
		})
	}
}

// With a control, Run goes on after errors and beside a persistent znode, and
// says what is wrong.
func TestNode_ControlGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		must(t, w.Create("/n", nil))
		h := newHelm("one")
		s := w.dial("a")
		keep(t, s, NodeConfig{Path: "/n", Internal: keeper.Config{Control: h.control()}})
		if st := h.is(); !errors.Is(st.Blocked, ErrInTheWay) || st.Owned {
			t.Fatalf("state %+v", st)
		}
		must(t, w.Delete("/n"))
		settle()
		if st := h.is(); !st.Owned || st.Blocked != nil || w.data("/n") != "one" {
			t.Fatalf("state %+v", st)
		}
		wrong := errors.New("wrong")
		h.set(keeper.Want{}, wrong)
		if st := h.is(); !errors.Is(st.Err, wrong) || !st.Owned {
			t.Fatalf("state %+v", st)
		}
		h.set(keeper.Want{Data: []byte("two")}, nil)
		time.Sleep(recreateLast)
		settle()
		if st := h.is(); st.Err != nil || w.data("/n") != "two" {
			t.Fatalf("state %+v, data %s", st, w.data("/n"))
		}
		w.RefuseWith(jute.OpSetData, jute.ErrCodeNoAuth)
		h.set(keeper.Want{Data: []byte("three")}, nil)
		if st := h.is(); !errors.Is(st.Err, session.ErrNoAuth) {
			t.Fatalf("state %+v", st)
		}
		w.Allow(jute.OpSetData)
		time.Sleep(recreateLast)
		settle()
		if st := h.is(); st.Err != nil || w.data("/n") != "three" {
			t.Fatalf("state %+v, data %s", st, w.data("/n"))
		}
	})
}

// With a control, what somebody else writes is set right at once, and more and
// more rarely.
func TestNode_ControlSetsForeignWritesRight(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		h := newHelm("ours")
		keep(t, w.dial("a"), NodeConfig{Path: "/n", Internal: keeper.Config{Control: h.control()}})
		w.ResetRequests()
		for range 600 {
			if w.data("/n") == "ours" {
				must(t, w.Set("/n", []byte("theirs")))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := w.Requests()["setData"]; got < 2 || got > 20 {
			t.Errorf("written %d times in a minute", got)
		}
	})
}

// A busy machine: a delay ends after the step that it has postponed, and before the node
// waits. The node does not sleep then until something else wakes it.
func TestNode_DelayEndsBeforeTheWait(t *testing.T) {
	for name, refused := range map[string]bool{"splay": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				h, s := newHelm("one"), w.dial("a")
				c := h.control()
				slow := c.Changed
				c.Changed = func(s keeper.State) {
					slow(s)
					if !s.Owned {
						time.Sleep(2 * time.Second) // virtual
					}
				}
				if c.First = time.Second; refused {
					c.First = 0
					w.RefuseWith(jute.OpCreate2, jute.ErrCodeSystemError)
				}
				keep(t, s, NodeConfig{Path: "/n", Internal: keeper.Config{Control: c}})
				time.Sleep(time.Second)
				w.ClearFaults()
				time.Sleep(time.Minute)
				if !w.Exists("/n") {
					t.Error("not made after its time")
				}
			})
		})
	}
}

// A removal waits for no splay; a look does.
func TestNode_ControlSplay(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		h, s := newHelm("one"), w.dial("a")
		c := h.control()
		c.First, c.Splay = time.Minute, time.Minute
		keep(t, s, NodeConfig{Path: "/n", Internal: keeper.Config{Control: c}})
		time.Sleep(time.Minute - time.Second)
		if w.Exists("/n") {
			t.Fatal("made before its time")
		}
		time.Sleep(2 * time.Second)
		if !w.Exists("/n") {
			t.Fatal("not made after its time")
		}
		w.Partition()
		time.Sleep(memTimeout / 2)
		must(t, w.Set("/n", []byte("theirs")))
		w.Heal()
		time.Sleep(40 * time.Second)
		if got := w.data("/n"); got != "theirs" {
			t.Errorf("%q: looked at before its time", got)
		}
		h.mu.Lock()
		h.want = keeper.Want{Absent: true}
		h.mu.Unlock()
		h.wake <- struct{}{}
		time.Sleep(time.Second)
		if w.Exists("/n") {
			t.Error("a removal waited for the splay")
		}
	})
}

// Whatever reply is lost, one znode with the newest data stands in the end.
func TestNode_ControlLostReplies(t *testing.T) {
	for n := 1; n <= 8; n++ {
		for _, before := range []bool{false, true} {
			bubble(t, func(t *testing.T, w *world) {
				h, s := newHelm("one"), w.dial("a")
				w.LoseReply(memzk.AnyOp, n, before)
				var log bytes.Buffer
				keep(t, s, NodeConfig{
					Path: "/g/m_", Internal: keeper.Config{Sequence: &keeper.Sequence{}, Control: h.control()}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				defer func() {
					if log.Len() > 0 {
						t.Errorf("reply %d lost (before it was applied: %v): somebody else is blamed: %s", n, before, &log)
					}
				}()
				settle()
				h.set(keeper.Want{Data: []byte("two")}, nil)
				settle()
				if got := below(w, "/g"); len(got) != 1 || w.data(got[0]) != "two" || h.is().Path != got[0] {
					t.Errorf("reply %d lost (before it was applied: %v): %v, %+v", n, before, got, h.is())
				}
			})
		}
	}
}
