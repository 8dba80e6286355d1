package election

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/history"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// TestHistory_Porcupine lets candidates campaign while their network is
// disturbed, and looks for an order of the begins and ends of terms in which
// no two candidates lead at a time, and terms never go back.
func TestHistory_Porcupine(t *testing.T) {
	testhelp.InTurn(t, 2)
	for seed := range uint64(4) {
		var h history.Log
		bubble(t, func(t *testing.T, w *memzk.Server) { record(t, &h, w, seed) })
		h.Check(t, history.Office, 10)
	}
}

// record lets candidates campaign while their network is disturbed.
func record(t *testing.T, h *history.Log, w *memzk.Server, seed uint64) {
	t.Helper()
	const candidates = 3
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range candidates {
		wg.Go(func() { recordCampaign(ctx, h, w, i) })
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

// recordCampaign is one candidate, session after session. A term's begin may be
// anywhere between the last moment at which it was not led and Lead's call.
func recordCampaign(ctx context.Context, h *history.Log, w *memzk.Server, i int) {
	id := fmt.Sprintf("c%d", i)
	idle := h.Now()
	c := New(Config{Name: "e", Path: "/e", ID: id, Lead: func(ctx context.Context, term Term) {
		h.Add(i, idle, history.Term{Who: id, Begin: true}, term.ID)
		<-ctx.Done()
		h.Add(i, h.Now(), history.Term{Who: id}, term.ID)
		idle = h.Now()
	}})
	for ctx.Err() == nil {
		s, err := session.Dial(ctx, session.Config{Servers: []string{id + ":2181"}, Timeout: memTimeout, Dial: w.Dial})
		if err != nil {
			continue
		}
		_ = c.Run(ctx, s, nil)
		_ = s.Close()
	}
}
