package election

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// office is what candidates take and leave: a register of who holds it and of
// the last term.
type office struct {
	holder string
	term   int64
}

// act is one operation on the office: begin (or end) a term.
type act struct {
	who   string
	begin bool
}

var officeModel = porcupine.Model{
	Init: func() any { return office{} },
	Step: func(state, input, output any) (bool, any) {
		o, a, term := state.(office), input.(act), output.(int64)
		if a.begin {
			// The same candidate's term may go on after a suspension.
			return o.holder == "" && term >= o.term, office{a.who, term}
		}
		return o.holder == a.who && term == o.term, office{"", o.term}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %v", input, output) },
}

// TestHistory_Porcupine lets candidates campaign while their network is
// disturbed, and looks for an order of the begins and ends of terms in which
// nobody leads beside another and terms never go back.
func TestHistory_Porcupine(t *testing.T) {
	for seed := range uint64(4) {
		bubble(t, func(t *testing.T, w *memzk.Server) {
			h := &history{}
			h.record(t, w, seed)
			if len(h.ops) < 10 {
				t.Errorf("seed %d: only %d operations", seed, len(h.ops))
			}
			if got := porcupine.CheckOperationsTimeout(officeModel, h.ops, time.Hour); got != porcupine.Ok {
				t.Errorf("seed %d: %d operations: %v", seed, len(h.ops), got)
			}
		})
	}
}

// history counts moments instead of measuring them: virtual time stands still
// between two of them.
type history struct {
	mu  sync.Mutex // mu guards what follows
	now int64
	ops []porcupine.Operation
}

func (h *history) tick() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	return h.now
}

func (h *history) add(client int, call int64, a act, term int64) {
	at := h.tick()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: a, Call: call, Output: term, Return: at})
}

func (h *history) record(t *testing.T, w *memzk.Server, seed uint64) {
	t.Helper()
	const candidates = 3
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range candidates {
		wg.Go(func() { h.campaign(ctx, w, i) })
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	for ctx.Err() == nil {
		addr := fmt.Sprintf("c%d:2181", rng.IntN(candidates))
		switch rng.IntN(5) {
		case 0:
			w.LoseReply(memzk.AnyOp, 1+rng.IntN(8), rng.IntN(2) == 0)
		case 1:
			w.DropConnections(addr)
		case 2:
			w.Partition(addr)
		case 3:
			w.CutClientToServer(addr)
		case 4:
			w.Heal()
		}
		timer := time.NewTimer(time.Duration(rng.Int64N(int64(2 * memTimeout))))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	w.ClearFaults()
	wg.Wait()
}

// campaign is one candidate, session after session. A term's begin may be
// anywhere between the last moment at which it was not led and Lead's call.
func (h *history) campaign(ctx context.Context, w *memzk.Server, i int) {
	id := fmt.Sprintf("c%d", i)
	idle := h.tick()
	c := New(Config{Name: "e", Path: "/e", ID: id, Lead: func(ctx context.Context, term Term) {
		h.add(i, idle, act{id, true}, term.ID)
		<-ctx.Done()
		h.add(i, h.tick(), act{id, false}, term.ID)
		idle = h.tick()
	}})
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{id + ":2181"}, Timeout: memTimeout, Dial: w.Dial})
		if err != nil {
			continue
		}
		_ = c.Run(ctx, s, func(view.Update) {})
		_ = s.Close()
	}
}
