package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// host is one process with members, which can crash: its session goes on
// without it until the server expires it.
type host struct {
	mgr    *session.Manager
	ctx    context.Context //nolint:containedctx // the life of the process
	cancel context.CancelFunc
	wg     sync.WaitGroup

	members map[int]*Registrar // by port
}

func startHost(t *testing.T, cfg session.Config) *host {
	t.Helper()
	mgr, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{mgr: mgr, members: map[int]*Registrar{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.wg.Go(func() { _ = mgr.Run(h.ctx) })
	return h
}

func (h *host) join(port int) {
	r := NewRegistrar(service("/services/web", FormatNerve, fmt.Sprintf("m%d", port), port))
	h.members[port] = r
	h.wg.Go(func() {
		for h.ctx.Err() == nil {
			s, err := h.mgr.Session(h.ctx)
			if err != nil {
				return
			}
			_ = r.Run(h.ctx, s)
		}
	})
}

func (h *host) crash() {
	h.mgr.HandOver() // only the connection ends
	h.end()
}

func (h *host) end() {
	h.cancel()
	h.wg.Wait()
}

// kazooReader is a foreign reader: asked by a line, it answers with what it
// sees in the group.
const kazooReader = `
import json, sys
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
zk = KazooClient(hosts=sys.argv[1], timeout=60); zk.start(timeout=60)
print("ready", flush=True)
for line in sys.stdin:
    zk.sync("/services/web")
    seen = set()
    for name in zk.get_children("/services/web"):
        try:
            seen.add(json.loads(zk.get("/services/web/" + name)[0])["port"])
        except NoNodeError:
            pass
    print("seen " + line.strip() + " " + json.dumps(sorted(seen)), flush=True)
zk.stop()
`

// After 1,000 random joins (250 in a quick run), leaves and crashes a foreign reader and our own
// view agree with what there is, and so they do each time in between when
// nothing happens.
func TestInterop_ChurnUnderAForeignReader(t *testing.T) {
	t.Parallel()
	python := needProgram(t, "/usr/bin/python3", "python3-kazoo")
	const seed = 7 // fixed: a run that fails must fail again
	rnd := rand.New(rand.NewPCG(seed, 1))
	cfg := realConfig(zktest.Shared(t).Addr(), zktest.Root(t))
	ours := follow(t, cfg, GroupConfig{Name: "web", Path: "/services/web", NoDamping: true, Guard: GuardConfig{Off: true}})
	theirs := program(t, exec.CommandContext(t.Context(), python, "-c", kazooReader, cfg.Servers[0]+cfg.Chroot))
	theirs.until(t, "ready")

	crashing := cfg
	crashing.Timeout = 5 * time.Second
	hosts := make([]*host, 6)
	for i := range hosts {
		hosts[i] = startHost(t, crashing)
	}
	t.Cleanup(func() {
		for _, h := range hosts {
			h.end()
		}
	})
	where := map[int]*host{}
	for event := 1; event <= testhelp.Rounds(250, 1000); event++ {
		port, i := rnd.IntN(40)+1, rnd.IntN(len(hosts))
		switch h := where[port]; {
		case rnd.IntN(50) == 0:
			for port := range hosts[i].members {
				delete(where, port)
			}
			hosts[i].crash()
			hosts[i] = startHost(t, crashing)
		case h == nil:
			hosts[i].join(port)
			where[port] = hosts[i]
		default:
			drain(t, h.members[port])
			delete(h.members, port)
			delete(where, port)
		}
		if event%250 == 0 {
			agree(t, event, where, ours, theirs)
		}
	}
}

// agree waits until both readers see exactly what there is.
func agree(t *testing.T, event int, where map[int]*host, ours *runner, theirs *peer) {
	t.Helper()
	var want []int
	for port := range where {
		want = append(want, port)
	}
	slices.Sort(want)
	wait(t, fmt.Sprintf("our view after %d events", event), ours.shows(want...))
	asked := 0
	wait(t, fmt.Sprintf("the foreign view after %d events", event), func() bool {
		asked++
		mark := fmt.Sprintf("seen %d.%d ", event, asked)
		if _, err := io.WriteString(theirs.stdin, strings.TrimPrefix(mark, "seen ")+"\n"); err != nil {
			t.Fatal(err)
		}
		var answer string
		wait(t, "an answer", func() bool {
			_, rest, _ := strings.Cut(theirs.text(), mark)
			line, _, whole := strings.Cut(rest, "\n")
			answer = line
			return whole
		})
		var got []int
		return json.Unmarshal([]byte(answer), &got) == nil && slices.Equal(got, want)
	})
	if !ours.shows(want...)() {
		t.Errorf("after %d events our view went away from %v", event, want)
	}
}
