package memzk

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(standIn); socket != "" {
		beServer(socket)
	}
	zktest.RunMain(m)
}

// target is one server that a program runs on.
type target struct {
	name string
	addr string
}

// targets starts this package's server and a real one. Neither reaps
// containers, because that would be a transaction in the middle of a program.
func targets(t *testing.T) []target {
	t.Helper()
	s := New(Options{Version: zktest.Version(t, zktest.Release), MinTimeout: 200 * time.Millisecond, MaxTimeout: time.Minute, ContainerInterval: 24 * time.Hour})
	t.Cleanup(s.Close)
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reference := zktest.Start(t, zktest.Options{JVMFlags: []string{"-Dznode.container.checkIntervalMs=86400000"}})
	return []target{{"memzk", addr.String()}, {"real", reference.Addr()}}
}

// runner runs the lines of a program on one server and writes down everything
// that a client can see, with what differs between servers replaced: zxids and
// session ids by their order, times by whether they are there.
type runner struct {
	t     *testing.T
	addr  string
	root  string
	conns map[string]*raw.Conn
	out   strings.Builder
}

func newRunner(t *testing.T, addr, root string) *runner {
	t.Helper()
	r := &runner{t: t, addr: addr, root: root, conns: map[string]*raw.Conn{}}
	t.Cleanup(func() {
		for _, c := range r.conns {
			c.Close()
		}
	})
	return r
}

// conn returns the connection of that name, opened when it is first used.
func (r *runner) conn(name string) *raw.Conn {
	r.t.Helper()
	if c := r.conns[name]; c != nil {
		return c
	}
	return r.open(name, raw.Options{Timeout: time.Minute})
}

func (r *runner) open(name string, o raw.Options) *raw.Conn {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	c, err := raw.Dial(ctx, r.addr, o)
	if err != nil {
		r.t.Fatalf("connect %s: %v", name, err)
	}
	// The first reply tells the zxid that later ones are compared with.
	if _, err := c.Call(jute.OpExists, raw.Body("/", false)); err != nil {
		r.t.Fatalf("first request of %s: %v", name, err)
	}
	r.conns[name] = c
	return c
}

// lost takes up the session of a connection that the server has ended, and
// closes it: a session that expires later would be a transaction in the middle
// of another program.
func (r *runner) lost(name string) {
	r.t.Helper()
	old := r.conns[name]
	old.Drop()
	delete(r.conns, name)
	c, err := raw.Dial(r.t.Context(), r.addr, raw.Options{Timeout: time.Minute, SessionID: old.Session.SessionID, Password: old.Session.Password})
	if err != nil {
		r.t.Fatalf("take up the session of %s: %v", name, err)
	}
	c.Close()
}

// path puts the root before a path that begins with a slash.
func (r *runner) path(p string) string {
	if p == "/" {
		return r.root
	}
	if strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "/zookeeper") {
		return r.root + p
	}
	return p
}

// strip takes the root off again.
func (r *runner) strip(p string) string {
	if p == r.root {
		return "/"
	}
	return strings.TrimPrefix(p, r.root)
}

func (r *runner) logf(format string, args ...any) { fmt.Fprintf(&r.out, format, args...) }

// stat writes a Stat down. Zxids are given relative to the znode's creation,
// which is the same on both servers when nobody else writes between.
func (r *runner) stat(s jute.Stat) string {
	owner := "none"
	for name, c := range r.conns {
		if s.EphemeralOwner == c.Session.SessionID {
			owner = name
		}
	}
	if s.EphemeralOwner != 0 && owner == "none" {
		owner = fmt.Sprintf("%#x", uint64(s.EphemeralOwner))
	}
	return fmt.Sprintf("{m+%d p+%d v%d c%d a%d owner=%s len=%d kids=%d times=%v/%v}",
		s.Mzxid-s.Czxid, s.Pzxid-s.Czxid, s.Version, s.Cversion, s.Aversion, owner, s.DataLength, s.NumChildren,
		s.Ctime > 0, s.Mtime >= s.Ctime)
}

// events writes down what came since the last call, on every connection. A sync
// on each connection makes sure that everything has come.
func (r *runner) events() {
	r.t.Helper()
	names := make([]string, 0, len(r.conns))
	for name := range r.conns {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c := r.conns[name]
		if _, err := c.Call(jute.OpSync, raw.Body("/")); err != nil {
			r.t.Fatalf("sync on %s: %v", name, err)
		}
		for _, ev := range c.TakeEvents() {
			r.logf("  %s: event %d state %d %s\n", name, ev.Type, ev.State, r.strip(ev.Path))
		}
	}
}

// call sends a request and returns its reply; the code is written down, and the
// zxid relative to the last one of that connection.
func (r *runner) call(name string, op int32, fields ...any) *jute.Decoder {
	r.t.Helper()
	c := r.conn(name)
	before := c.Zxid
	reply, err := c.Call(op, raw.Body(fields...))
	if err != nil {
		r.logf("%s %s: connection lost\n", name, jute.OpName(op))
		return nil
	}
	r.logf("%s %s: code %d zxid+%d", name, jute.OpName(op), reply.Err, c.Zxid-before)
	if op == jute.OpAuth {
		r.logf(" zxid=%d", reply.Zxid)
	}
	if reply.Err != 0 && len(reply.Body) > 0 {
		r.logf(" body of %d bytes with an error", len(reply.Body))
	}
	if reply.Err != 0 {
		return nil
	}
	return jute.NewDecoder(reply.Body)
}

// end finishes a line and writes down the events that it caused.
func (r *runner) end(d *jute.Decoder) {
	r.t.Helper()
	if d != nil && (d.Err() != nil || d.Len() > 0) {
		r.logf(" [decode: %v, %d bytes left]", d.Err(), d.Len())
	}
	r.logf("\n")
	r.events()
}

// compare runs program on all targets and fails on the first line that differs.
func compare(t *testing.T, servers []target, program func(r *runner)) {
	t.Helper()
	var outs []string
	for i, tg := range servers {
		root := "/" + strings.ReplaceAll(t.Name(), "/", "-")
		setup, err := raw.Dial(t.Context(), tg.addr)
		if err != nil {
			t.Fatal(err)
		}
		if code, err := setup.Create(root, nil, jute.FlagPersistent); err != nil || code != 0 {
			t.Fatalf("create %s on %s: code %d, %v", root, tg.name, code, err)
		}
		setup.Close()
		r := newRunner(t, tg.addr, root)
		program(r)
		outs = append(outs, r.out.String())
		if i > 0 {
			diffLines(t, outs[0], outs[i], tg.name)
		}
	}
}

func diffLines(t *testing.T, got, want, name string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		line := func(s []string) string {
			if i < len(s) {
				return s[i]
			}
			return "(end)"
		}
		if line(g) != line(w) {
			t.Fatalf("line %d differs:\n memzk %s\n %5s %s\nbefore:\n%s", i+1, line(g), name, line(w), strings.Join(g[max(0, i-12):i], "\n"))
		}
	}
}

// dialTCP opens a bare connection.
func dialTCP(t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	nc, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}
