package registry

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// TestSeeds runs a registrar and a reader of its group in virtual time under
// random faults. The invariants: after the faults the member is registered if
// and only if its check says so, once, in a session that lives; and the
// reader shows what is there, without a member that never was.
func TestSeeds(t *testing.T) { testhelp.Seeds(t, 3*time.Second, simulate) }

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
		for range 6 + rnd.IntN(12) {
			strike(srv, rnd, &h)
			time.Sleep(time.Duration(rnd.IntN(8000)) * time.Millisecond)
		}
		srv.ClearFaults()
		srv.Heal()
		srv.Resume()
		healthy := rnd.IntN(4) > 0
		h.bad.Store(!healthy)
		settles(t, srv, reader, healthy)
		for _, u := range reader.all() {
			for _, m := range u.(*view.Group).Members {
				if m.Host != "10.0.0.5" || m.Port != 8080 {
					t.Errorf("a member that never was: %+v", m)
				}
			}
		}
	})
}

// settles waits until the member is as its check says and the reader agrees,
// and checks that it stays so. All times are virtual.
func settles(t *testing.T, srv *memzk.Server, reader *runner, healthy bool) {
	t.Helper()
	end := time.Now().Add(6 * time.Minute)
	time.Sleep(30 * time.Second) // the check needs several runs to fall or rise
	synctest.Wait()
	for !agrees(srv, reader, healthy) {
		if time.Now().After(end) {
			t.Fatalf("healthy is %v, and there is %v", healthy, nodes(srv))
		}
		time.Sleep(time.Second)
		synctest.Wait()
	}
	time.Sleep(20 * time.Second)
	synctest.Wait()
	if !agrees(srv, reader, healthy) {
		t.Errorf("it did not stay so: healthy is %v, and there is %v", healthy, nodes(srv))
	}
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
