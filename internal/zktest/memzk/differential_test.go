package memzk

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// differentialSteps is the length of a program of TestDifferential.
const differentialSteps = 50

// TestDifferential runs random programs of operations, watches and reconnects
// on this package's server and on a real one and wants the same answers.
func TestDifferential(t *testing.T) {
	servers := targets(t)
	testhelp.Seeds(t, time.Second, func(t *testing.T, seed uint64) {
		compare(t, servers, func(r *runner) {
			g := &generator{runner: r, rnd: rand.New(rand.NewPCG(seed, 20))}
			for range differentialSteps {
				g.step()
			}
		})
	})
}

// generator makes one random step after another; the same seed makes the same
// steps, whatever the server answers.
type generator struct {
	*runner
	rnd *rand.Rand
}

func pick[T any](g *generator, from ...T) T { return from[g.rnd.IntN(len(from))] }

func (g *generator) who() string { return pick(g, "a", "b", "c") }

func (g *generator) somePath() string {
	return pick(g, "/x", "/x/1", "/x/2", "/x/1/deep", "/y", "/y/1", "/z")
}

func (g *generator) version() int32 { return pick[int32](g, -1, -1, -1, 0, 1, 2) }
func (g *generator) watch() bool    { return g.rnd.IntN(2) == 0 }
func (g *generator) data() string   { return pick(g, "", "d", "data", "more data") }

func (g *generator) acl() []jute.ACL {
	return pick(g, raw.OpenACL, raw.OpenACL, raw.OpenACL,
		[]jute.ACL{{Perms: jute.PermRead, Scheme: "world", ID: "anyone"}, {Perms: jute.PermAll, Scheme: "digest", ID: jute.Digest("u:p")}},
		[]jute.ACL{{Perms: jute.PermAll, Scheme: "digest", ID: jute.Digest("u:p")}},
		[]jute.ACL{{Perms: jute.PermAll, Scheme: "auth", ID: ""}})
}

func (g *generator) step() {
	g.t.Helper()
	who, path := g.who(), g.somePath()
	switch n := g.rnd.IntN(100); {
	case n < 25:
		op := pick(g, jute.OpCreate, jute.OpCreate2, jute.OpCreateContainer)
		flags := pick(g, jute.FlagPersistent, jute.FlagPersistent, jute.FlagEphemeral, jute.FlagSequential, jute.FlagEphemeralSequential)
		g.createACL(who, op, path, g.data(), flags, g.acl())
	case n < 35:
		g.set(who, path, g.data(), g.version())
	case n < 43:
		g.delete(who, path, g.version())
	case n < 50:
		g.get(who, path, g.watch())
	case n < 56:
		g.exists(who, path, g.watch())
	case n < 62:
		g.children(who, path, g.watch(), g.watch())
	case n < 68:
		g.addWatch(who, path, pick(g, jute.AddWatchPersistent, jute.AddWatchPersistentRecursive))
	case n < 72:
		g.watches(who, pick(g, jute.OpCheckWatches, jute.OpRemoveWatches), path,
			pick(g, jute.WatcherChildren, jute.WatcherData, jute.WatcherAny))
	case n < 80:
		g.randomMulti(who)
	case n < 82:
		g.multi(who, jute.OpMultiRead, g.part(jute.OpGetData, path, g.watch()), g.part(jute.OpGetChildren, g.somePath(), g.watch()))
	case n < 83:
		g.rare(who, path)
	case n < 86:
		g.setACL(who, path, g.version(), g.acl()...)
	case n < 88:
		g.getACL(who, path)
	case n < 90:
		g.auth(who, "digest", pick(g, "u:p", "v:q"))
	case n < 92:
		g.ephemerals(who, "/")
	case n < 95:
		g.randomReconnect(who)
	case n < 97:
		g.close(g.existing(who))
	default:
		g.pipeline(who)
	}
}

// rare is what clients hardly ever ask.
func (g *generator) rare(who, path string) {
	g.t.Helper()
	switch g.rnd.IntN(4) {
	case 0:
		g.count(who, path)
	case 1:
		g.whoAmI(who)
	case 2:
		g.end(g.call(who, jute.OpSASL, []byte("token")))
	default:
		g.create(who, jute.OpCreateTTL, path, g.data(), jute.FlagPersistentTTL, int64(3_600_000))
	}
}

// existing makes sure that the connection is there before it is closed.
func (g *generator) existing(who string) string {
	g.conn(who)
	return who
}

func (g *generator) randomMulti(who string) {
	g.t.Helper()
	var parts []multiPart
	for range 1 + g.rnd.IntN(4) {
		path := g.somePath()
		switch g.rnd.IntN(4) {
		case 0:
			flags := pick(g, jute.FlagPersistent, jute.FlagEphemeral, jute.FlagSequential, jute.FlagContainer)
			parts = append(parts, g.part(pick(g, jute.OpCreate, jute.OpCreate2), path, []byte(g.data()), g.acl(), flags))
		case 1:
			parts = append(parts, g.part(jute.OpSetData, path, []byte(g.data()), g.version()))
		case 2:
			parts = append(parts, g.part(jute.OpDelete, path, g.version()))
		default:
			parts = append(parts, g.part(jute.OpCheck, path, g.version()))
		}
	}
	g.multi(who, jute.OpMulti, parts...)
}

// randomReconnect takes the session up again, with the watches as a client
// would know them, or with none.
func (g *generator) randomReconnect(who string) {
	g.t.Helper()
	g.reconnect(who)
	if g.rnd.IntN(3) == 0 {
		return
	}
	some := func() []string {
		var paths []string
		for range g.rnd.IntN(3) {
			paths = append(paths, g.somePath())
		}
		return paths
	}
	lists := [][]string{some(), some(), some()}
	if g.watch() {
		lists = append(lists, some(), some())
	}
	// What the connection missed is not known here, so the distance is small
	// and the same on both servers.
	g.setWatches(who, int64(g.rnd.IntN(6)), lists...)
}

// pipeline sends requests without waiting and writes down the order in which
// replies and events come.
func (g *generator) pipeline(who string) {
	g.t.Helper()
	c := g.conn(who)
	const first, n = 1 << 20, 6
	for i := range int32(n) {
		path := g.path(g.somePath())
		op, body := jute.OpGetData, raw.Body(path, g.watch())
		switch g.rnd.IntN(4) {
		case 0:
			op, body = jute.OpSetData, raw.Body(path, []byte(g.data()), -1)
		case 1:
			op, body = jute.OpCreate, raw.Body(path, []byte(g.data()), raw.OpenACL, 0)
		case 2:
			op, body = jute.OpGetChildren, raw.Body(path, true)
		}
		if err := c.Send(first+i, op, body); err != nil {
			g.t.Fatalf("pipeline: %v", err)
		}
	}
	g.logf("%s pipeline:", who)
	for seen := 0; seen < n; {
		reply, err := c.Receive()
		if err != nil {
			g.t.Fatalf("pipeline: %v", err)
		}
		if reply.Xid != jute.XidNotification {
			seen++
			c.Zxid = max(c.Zxid, reply.Zxid)
			g.logf(" reply %d code %d", reply.Xid-first, reply.Err)
			continue
		}
		var ev jute.WatcherEvent
		_ = jute.NewDecoder(reply.Body).Get(&ev)
		g.logf(" event %d %s", ev.Type, g.strip(ev.Path))
	}
	g.logf("\n")
	g.events()
}
