package registry

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// TestSeeds runs a registrar and a reader of its group in virtual time under
// random faults. The invariants: after the faults the member is registered if
// and only if its check says so, once, in a session that lives; and the
// reader shows what is there, without a member that never was.
//
// SEEDS=n runs n seeds instead of a few; SEED=n begins at n.
func TestSeeds(t *testing.T) {
	first, count := uint64(1), 60
	if v, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		first = v
	}
	if v, err := strconv.Atoi(os.Getenv("SEEDS")); err == nil {
		count = v
	}
	for seed := first; seed < first+uint64(count); seed++ {
		t.Run(fmt.Sprintf("SEED=%d", seed), func(t *testing.T) { simulate(t, seed) })
	}
}

func simulate(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 5))
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var h health
		service := webService(&h)
		if rnd.IntN(2) == 0 {
			service = curatorService(&h)
		}
		group := webGroup()
		group.Guard.Off, group.NoDamping = true, true
		writer := run(t, addrConfig(srv, "writer:2181"), NewRegistrar(service))
		defer writer.stop()
		reader := run(t, addrConfig(srv, "reader:2181"), NewGroup(group))
		defer reader.stop()
		for range 40 {
			strike(srv, rnd, &h)
			time.Sleep(time.Duration(rnd.IntN(8000)) * time.Millisecond)
		}
		srv.ClearFaults()
		srv.Heal()
		srv.Resume()
		healthy := rnd.IntN(4) > 0
		h.bad.Store(!healthy)
		time.Sleep(time.Minute) // virtual: the check needs several runs to fall or rise
		eventually(t, 5*time.Minute, "the member as its check says, and the reader to agree", func() bool {
			return agrees(srv, reader, healthy)
		})
		always(t, time.Minute, "it stays so", func() bool { return agrees(srv, reader, healthy) })
		for _, u := range reader.all() {
			for _, m := range u.(*view.Group).Members {
				if m.Host != "10.0.0.5" || m.Port != 8080 {
					t.Errorf("a member that never was: %+v", m)
				}
			}
		}
	})
}

// addrConfig is memConfig for a client that faults can single out.
func addrConfig(srv *memzk.Server, addr string) session.Config {
	c := memConfig(srv)
	c.Servers = []string{addr}
	return c
}

// strike does one random thing to the server, the network or the health.
func strike(srv *memzk.Server, rnd *rand.Rand, h *health) {
	ops := []int32{jute.OpCreate, jute.OpCreate2, jute.OpMulti, jute.OpDelete, jute.OpGetChildren2, jute.OpGetData, jute.OpExists, jute.OpSetData, jute.OpSync}
	side := []string{"writer:2181", "reader:2181"}[rnd.IntN(2)]
	switch rnd.IntN(12) {
	case 0:
		srv.DropConnections(side)
	case 1:
		for _, id := range srv.SessionIDs() {
			if rnd.IntN(2) == 0 {
				srv.ExpireSession(id)
			}
		}
	case 2, 3:
		srv.LoseReply(ops[rnd.IntN(len(ops))], 1+rnd.IntN(2), rnd.IntN(2) == 0)
	case 4:
		srv.Partition(side)
	case 5:
		srv.CutClientToServer(side)
	case 6:
		srv.CutServerToClient(side)
	case 7, 8:
		srv.Heal()
	case 9:
		srv.Restart()
	case 10:
		h.bad.Store(rnd.IntN(2) == 0)
	case 11:
		for name := range nodes(srv) {
			_ = srv.Delete(groupPath + "/" + name) // an operator
		}
	}
}

// agrees reports whether exactly the wanted member exists, in a session that
// lives, and the reader shows just that.
func agrees(srv *memzk.Server, reader *runner, healthy bool) bool {
	there := nodes(srv)
	want := 0
	if healthy {
		want = 1
	}
	if len(there) != want {
		return false
	}
	for _, n := range there {
		if n.Stat.EphemeralOwner == 0 || !srv.Connected(n.Stat.EphemeralOwner) {
			return false
		}
	}
	g := reader.group()
	return g != nil && len(g.Members) == want
}
