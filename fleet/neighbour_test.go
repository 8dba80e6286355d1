package fleet

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// nextVersion stands for the next version of the program: everything that its
// hosts write has a field that this version does not know.
type nextVersion struct {
	server *memzk.Server
	hosts  map[string]bool
	wrote  atomic.Int64
}

func (n *nextVersion) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := n.server.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &nextConn{Conn: c, n: n}, nil
}

// nextConn adds the field to every JSON object in the requests that pass.
type nextConn struct {
	net.Conn

	n       *nextVersion
	pending []byte
}

func (c *nextConn) Write(b []byte) (int, error) {
	c.pending = append(c.pending, b...)
	for len(c.pending) >= 4 {
		end := 4 + int(binary.BigEndian.Uint32(c.pending))
		if len(c.pending) < end {
			break
		}
		body := c.n.extend(c.pending[4:end])
		c.pending = slices.Clone(c.pending[end:])
		if _, err := c.Conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// extend looks for buffers, which have their length before them, with an object.
func (n *nextVersion) extend(body []byte) []byte {
	const field = `{"next_version":{"a":[1,"b"]},`
	var out []byte
	for {
		i := bytes.Index(body, []byte(`{"`))
		if i < 4 {
			return append(out, body...)
		}
		size := int(binary.BigEndian.Uint32(body[i-4:]))
		if size < 2 || size > len(body)-i || !json.Valid(body[i:i+size]) {
			out, body = append(out, body[:i+1]...), body[i+1:]
			continue
		}
		n.wrote.Add(1)
		out = append(out, body[:i-4]...)
		out = binary.BigEndian.AppendUint32(out, uint32(size+len(field)-1))
		out = append(append(out, field...), body[i+1:i+size]...)
		body = body[i+size:]
	}
}

// TestNeighbours_UpgradeUnderARollout: hosts become the next version one by one
// while a rollout is open, and both versions finish it, and the ones after it.
func TestNeighbours_UpgradeUnderARollout(t *testing.T) {
	testhelp.OnlyAll(t, "minutes of a fleet with the race detector")
	inBubble(t, 6, func(t *testing.T, w *world) {
		w.next = &nextVersion{server: w.server, hosts: map[string]bool{}}
		all := func(version int64) {
			t.Helper()
			for id, h := range w.hosts {
				if h.version() != version {
					t.Errorf("%s uses version %d, not %d", id, h.version(), version)
				}
			}
		}
		name := w.propose(2, Strategy{Parallel: 2, Canary: 1, Bake: Duration(5 * time.Minute)})
		w.await("the canary", func() bool {
			s, err := Read(t.Context(), w.desk, root, name)
			return err == nil && s.Counts().Done == 1
		})
		for _, id := range ids(6)[:3] {
			w.upgrade(id)
		}
		w.awaitPhase(name, PhaseDone)
		all(2)
		w.awaitPhase(w.propose(3, Strategy{Parallel: 2}), PhaseDone)
		all(3)

		// The rest is upgraded, and a host goes back to the version before.
		name = w.propose(4, Strategy{Parallel: 1, Canary: 1, Bake: Duration(5 * time.Minute)})
		w.await("the canary", func() bool {
			s, err := Read(t.Context(), w.desk, root, name)
			return err == nil && s.Counts().Done == 1
		})
		for _, id := range ids(6)[3:] {
			w.upgrade(id)
		}
		w.next.hosts["web-00"] = false
		w.hosts["web-00"].stop()
		w.hosts["web-00"].start()
		w.awaitPhase(name, PhaseDone)
		all(4)
		if n := w.next.wrote.Load(); n < 20 {
			t.Errorf("the next version wrote %d objects", n)
		}
	})
}

// upgrade restarts a host as the next version, and waits for its subscription.
func (w *world) upgrade(id string) {
	w.t.Helper()
	w.next.hosts[id] = true
	w.hosts[id].stop()
	w.hosts[id].start()
	w.await(id+" to subscribe again", func() bool {
		_, ok, err := w.desk.Exists(w.t.Context(), SubscriptionPath(root, id))
		return err == nil && ok
	})
}
