package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// Three servers are stopped for longer than the sessions of twenty services last, twice
// within a minute, behind nginx and HAProxy under load. With the guard no request fails,
// and the file keeps all servers. With LB_CHANGES it runs without the guard, too: these
// figures are for the comparison. A file is never empty, because a template keeps its last
// one while its group is empty.
func TestAllSessionsExpireTwice(t *testing.T) {
	testhelp.OnlyAll(t, "load balancers under load for a minute each")
	for _, guard := range []bool{true, false} {
		if !guard && os.Getenv("LB_CHANGES") == "" {
			continue // it promises nothing
		}
		for name, start := range map[string]func(*lbFleet, *testing.T) clients{"nginx": (*lbFleet).nginxFile, "HAProxy": (*lbFleet).haproxyFile} {
			t.Run(fmt.Sprintf("%s, guard %v", name, guard), func(t *testing.T) {
				ensemble := zktest.StartEnsemble(t, 3)
				f := emptyLBFleet(t, ensemble.Servers[0].Addr())
				if guard {
					f.guard = ""
				}
				f.register(t, 20)
				f.via = start(f, t)
				f.answers(t, "all members to answer", func(who map[string]int) bool { return len(who) == 20 })
				load, least := startLBLoad(t, f), f.leastServers(t)
				expired := 0
				for range 2 {
					before := f.owners(t)
					stopFor(t, ensemble, 8*time.Second)
					pause(t, 15*time.Second)
					after := f.owners(t)
					for name, owner := range before {
						if after[name] != owner {
							expired++
						}
					}
				}
				f.answers(t, "all members to answer again", func(who map[string]int) bool { return len(who) == 20 })
				got := load.end()
				asked, lost := got.asked[0]+got.asked[1], got.lost[0]+got.lost[1]
				t.Logf("%s, guard %v: %d sessions expired, the file had at least %d of 20 servers; %d of %d requests failed, that is %d of 20,000",
					name, guard, expired, least(), lost, asked, lost*20_000/max(asked, 1))
				if guard && lost > 0 {
					t.Errorf("lost with the guard: %.500v", got.errors)
				}
				if n := least(); guard && n < 15 {
					t.Errorf("the file had %d servers only", n)
				}
			})
		}
	}
}

// register starts servers with a registrar and a session of four seconds each.
func (f *lbFleet) register(t *testing.T, count int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for range count {
		n := f.serve(t)
		m, err := session.New(session.Config{Servers: []string{f.zk}, Timeout: 4 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		r := registry.NewRegistrar(registry.ServiceConfig{Name: "api", Groups: []string{"/services/api"}, Address: lbHost(n), Port: f.port, MemberID: lbName(n)})
		wg.Go(func() { _ = m.Run(ctx) })
		wg.Go(func() {
			for ctx.Err() == nil {
				s, err := m.Session(ctx)
				if err == nil {
					_ = r.Run(ctx, s)
				}
			}
		})
		eventually(t, "the service to be registered", func() bool { return r.Status().Registered })
	}
}

// owners are the sessions of the members.
func (f *lbFleet) owners(t *testing.T) map[string]int64 {
	t.Helper()
	children, err := f.s.GetChildren(t.Context(), "/services/api")
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]int64{}
	for _, c := range children {
		m, err := registry.Decode(registry.FormatNerve, c.Name, c.Data)
		if err != nil {
			t.Fatal(err)
		}
		owners[m.Host] = c.Stat.EphemeralOwner
	}
	return owners
}

// leastServers watches the files of the load balancer, and returns what tells the least
// number of servers that one had.
func (f *lbFleet) leastServers(t *testing.T) func() int {
	t.Helper()
	least := atomic.Int64{}
	least.Store(20)
	tick := time.NewTicker(20 * time.Millisecond)
	done := make(chan struct{})
	t.Cleanup(func() { tick.Stop(); close(done) })
	go func() {
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			for _, name := range []string{"upstreams.conf", "haproxy.cfg"} {
				if text, err := os.ReadFile(filepath.Join(f.dir, name)); err == nil {
					least.Store(min(least.Load(), int64(bytes.Count(text, []byte("127.0.7.")))))
				}
			}
		}
	}()
	return func() int { return int(least.Load()) }
}

// stopFor stops the processes of all servers for a time.
func stopFor(t *testing.T, e *zktest.Ensemble, d time.Duration) {
	t.Helper()
	for _, s := range e.Servers {
		s.Freeze(t)
	}
	pause(t, d)
	for _, s := range e.Servers {
		s.Resume(t)
	}
}

// pause lets real time go by.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
