package memzk

import (
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// TestConformance runs each program on this package's server and on a real one
// and wants the same answers, Stats and events, in the same order.
func TestConformance(t *testing.T) {
	servers := targets(t)
	for _, tt := range []struct {
		name    string
		program func(r *runner)
	}{
		{"create", createProgram},
		{"paths", pathProgram},
		{"kinds", kindProgram},
		{"sequence", sequenceProgram},
		{"delete", deleteProgram},
		{"data", dataProgram},
		{"stat", statProgram},
		{"multi", multiProgram},
		{"multi failures", multiFailureProgram},
		{"multiRead", multiReadProgram},
		{"acl", aclProgram},
		{"invalid acl", invalidACLProgram},
		{"auth", authProgram},
		{"watches", watchProgram},
		{"persistent watches", persistentProgram},
		{"watch removal", removalProgram},
		{"set watches", setWatchesProgram},
		{"watch without read", unreadableProgram},
		{"sessions", sessionProgram},
		{"handshake", handshakeProgram},
		{"special", specialProgram},
		{"usage", usageProgram},
		{"sasl", saslProgram},
		{"malformed", malformedProgram},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, servers, tt.program) })
	}
}

var allOps = []int32{jute.OpCreate, jute.OpCreate2, jute.OpCreateContainer}

func createProgram(r *runner) {
	for _, op := range allOps {
		p := "/" + jute.OpName(op)
		r.create("a", op, p, "data", 0)
		r.create("a", op, p, "data", 0)
		r.create("a", op, p+"/x/y", "data", 0)
		r.create("a", op, p+"/e", "data", jute.FlagEphemeral)
		r.create("a", op, p+"/e/below", "", 0)
		r.create("a", op, p+"/container", "", jute.FlagContainer)
		r.create("a", op, p+"/badflags", "", 9)
		r.create("a", op, p+"/negative", "", -1)
		r.create("a", op, p+"/ttl", "", jute.FlagPersistentTTL)
		r.get("a", p, false)
		r.get("a", p+"/e", false)
		r.children("a", p, false, true)
	}
	r.end(r.call("a", jute.OpCreate, r.path("/nil"), nil, raw.OpenACL, 0))
	r.get("a", "/nil", false)
	r.create("a", jute.OpCreate, "/empty", "", 0)
	r.get("a", "/empty", false)
}

func pathProgram(r *runner) {
	for _, p := range []string{
		"x", "x/y", "/a//b", "/a/", "//", "/a/./b", "/a/../b", "/.", "/..", "/.a", "/a\x00b", "/a\x01b", "/a\x1fb", "/a\x7fb",
		"/a\u0080b", "/a\u009fb", "/ä", "/\ud7ff", "/\uf8ff", "/\uf000", "/\ufff0", "/\ufff5", "/\U0001f600", "/a b", "/zookeeper/x/y",
	} {
		r.create("a", jute.OpCreate, p, "d", 0)
		r.set("a", p, "d2", -1)
		r.exists("a", p, false)
		r.get("a", p, false)
		r.getACL("a", p)
		r.setACL("a", p, -1, raw.OpenACL...)
		r.delete("a", p, -1)
		r.multi("a", jute.OpMulti, r.part(jute.OpCheck, p, int32(-1)))
	}
}

func kindProgram(r *runner) {
	r.create("a", jute.OpCreateContainer, "/c", "", jute.FlagContainer)
	r.get("a", "/c", false)
	r.create("a", jute.OpCreate2, "/c/x", "", 0)
	r.get("a", "/c", false)
	for _, ttl := range []int64{-1, 0, 1_000_000, 1<<40 - 1, 1 << 40} {
		r.create("a", jute.OpCreateTTL, "/ttl", "", jute.FlagPersistentTTL, ttl)
		r.get("a", "/ttl", false)
		r.delete("a", "/ttl", -1)
		if ttl >= 0 { // A real server crashes otherwise.
			r.create("a", jute.OpCreateTTL, "/ttl", "", jute.FlagPersistent, ttl)
		}
	}
	r.create("a", jute.OpCreateTTL, "/ttl-", "", jute.FlagPersistentSequentialTTL, int64(5_000_000))
	r.create("a", jute.OpCreateTTL, "/ttl", "", jute.FlagPersistentTTL, int64(5_000_000))
	r.create("a", jute.OpCreate, "/ttl/x", "", 0)
	r.create("a", jute.OpCreateContainer, "/cs-", "", jute.FlagEphemeralSequential)
	r.children("a", "/", false, true)
}

func sequenceProgram(r *runner) {
	r.create("a", jute.OpCreate, "/q", "", 0)
	for _, flags := range []int32{jute.FlagSequential, jute.FlagEphemeralSequential, 0, jute.FlagSequential} {
		r.create("a", jute.OpCreate2, "/q/n-", "", flags)
	}
	r.delete("a", "/q/n-0000000000", -1)
	r.create("a", jute.OpCreate, "/q/n-", "", jute.FlagSequential)
	r.create("a", jute.OpCreate, "/q/", "", jute.FlagSequential)
	r.create("a", jute.OpCreate, "/q//", "", jute.FlagSequential)
	r.children("a", "/q", false, true)
}

func deleteProgram(r *runner) {
	r.create("a", jute.OpCreate, "/d", "", 0)
	r.create("a", jute.OpCreate, "/d/x", "", 0)
	r.delete("a", "/d", -1)
	r.delete("a", "/d/x", 5)
	r.delete("a", "/d", 5)
	r.delete("a", "/d/x", 0)
	r.delete("a", "/d/x", 0)
	r.delete("a", "/none/x", -1)
	r.get("a", "/d", false)
	r.delete("a", "/d", -1)
	r.create("a", jute.OpCreate, "/e", "", jute.FlagEphemeral)
	r.delete("b", "/e", -1)
	r.ephemerals("a", "/")
}

func dataProgram(r *runner) {
	r.set("a", "/none", "x", -1)
	r.create("a", jute.OpCreate, "/d", "one", 0)
	r.set("a", "/d", "two", 0)
	r.set("a", "/d", "three", 0)
	r.set("a", "/d", "", 1)
	r.get("a", "/d", false)
	r.statReply(r.call("a", jute.OpSetData, r.path("/d"), nil, -1))
	r.get("a", "/d", false)
	r.set("a", "/d", "x", -2)
	r.exists("a", "/d", false)
	r.exists("a", "/none", false)
	r.get("a", "/none", false)
	r.children("a", "/none", false, false)
	r.children("a", "/none", false, true)
	r.end(r.call("a", jute.OpSync, r.path("/none")))
}

func statProgram(r *runner) {
	r.create("a", jute.OpCreate2, "/p", "", 0)
	for range 3 {
		r.create("a", jute.OpCreate2, "/p/c-", "", jute.FlagSequential)
		r.exists("a", "/p", false)
	}
	r.delete("a", "/p/c-0000000001", -1)
	r.exists("a", "/p", false)
	r.set("a", "/p", "data", -1)
	r.setACL("a", "/p", -1, raw.OpenACL...)
	r.exists("a", "/p", false)
	r.multi("a", jute.OpMulti,
		r.part(jute.OpCreate, "/p/m", []byte("x"), raw.OpenACL, 0),
		r.part(jute.OpSetData, "/p/m", []byte("yy"), int32(0)),
		r.part(jute.OpDelete, "/p/m", int32(1)))
	r.exists("a", "/p", false)
	r.count("a", "/p")
	r.count("a", "/none")
	r.count("a", "/p/c-0000000000")
}

func multiProgram(r *runner) {
	r.multi("a", jute.OpMulti)
	r.multi("a", jute.OpMulti,
		r.part(jute.OpCreate, "/m", []byte("x"), raw.OpenACL, 0),
		r.part(jute.OpCreate2, "/m/a", []byte("x"), raw.OpenACL, 0),
		r.part(jute.OpCreateContainer, "/m/c", []byte("x"), raw.OpenACL, jute.FlagContainer),
		r.part(jute.OpCreateTTL, "/m/t", []byte("x"), raw.OpenACL, jute.FlagPersistentTTL, int64(5_000_000)),
		r.part(jute.OpCreate, "/m/e", []byte("x"), raw.OpenACL, jute.FlagEphemeral),
		r.part(jute.OpCreate, "/m/s-", []byte("x"), raw.OpenACL, jute.FlagSequential),
		r.part(jute.OpCreate2, "/m/s-", []byte("x"), raw.OpenACL, jute.FlagEphemeralSequential),
		r.part(jute.OpCheck, "/m", int32(0)),
		r.part(jute.OpSetData, "/m", []byte("y"), int32(0)),
		r.part(jute.OpCheck, "/m", int32(1)),
		r.part(jute.OpDelete, "/m/a", int32(-1)))
	r.children("a", "/m", false, true)
	for _, p := range []string{"/m/c", "/m/t", "/m/e"} {
		r.get("a", p, false)
	}
	r.multi("a", jute.OpMulti,
		r.part(jute.OpCreate, "/guard", []byte{}, raw.OpenACL, 0),
		r.part(jute.OpDelete, "/guard", int32(-1)))
	r.get("b", "/m", true)
	r.children("b", "/m", true, false)
	r.exists("b", "/m/new", true)
	r.multi("a", jute.OpMulti,
		r.part(jute.OpSetData, "/m", []byte("y"), int32(-1)),
		r.part(jute.OpCreate, "/m/new", []byte("x"), raw.OpenACL, 0),
		r.part(jute.OpDelete, "/m/new", int32(-1)))
}

func multiFailureProgram(r *runner) {
	r.create("a", jute.OpCreate, "/m", "", 0)
	r.get("b", "/m", true)
	create := func(p string) multiPart { return r.part(jute.OpCreate, p, []byte("x"), raw.OpenACL, 0) }
	for _, parts := range [][]multiPart{
		{r.part(jute.OpCheck, "/m", int32(3))},
		{create("/m/x"), r.part(jute.OpCheck, "/m", int32(3)), create("/m/y")},
		{create("/m/x"), create("/m/x")},
		{create("/none/x"), create("/m/x")},
		{create("/m/x"), r.part(jute.OpDelete, "/m", int32(-1))},
		{r.part(jute.OpDelete, "/m", int32(-1)), create("/m/x")},
		{r.part(jute.OpSetData, "/m", []byte("z"), int32(0)), r.part(jute.OpSetData, "/m", []byte("z"), int32(0))},
		{r.part(jute.OpCheck, "/none", int32(-1))},
		{create("bad")},
		{r.part(jute.OpCreate, "/m/acl", []byte("x"), []jute.ACL{}, 0)},
		{r.part(jute.OpCreate, "/m/flags", []byte("x"), raw.OpenACL, 77), create("/m/x")},
		{r.part(jute.OpCreate, "/m/x", []byte("x"), raw.OpenACL, jute.FlagContainer), r.part(jute.OpDelete, "/m/x", int32(0)), create("/none/x")},
		{r.part(jute.OpCreateContainer, "/m/x", []byte("x"), raw.OpenACL, 0), r.part(jute.OpDelete, "/m/x", int32(0))},
		{r.part(jute.OpCreateTTL, "/m/x", []byte("x"), raw.OpenACL, 0, int64(5_000_000)), r.part(jute.OpDelete, "/m/x", int32(0))},
		{create("/m"), r.part(jute.OpCreate, "/m/ttl", []byte("x"), raw.OpenACL, jute.FlagPersistentTTL)},
		{r.part(jute.OpCreate, "/m/ttl", []byte("x"), raw.OpenACL, jute.FlagPersistentTTL)},
	} {
		r.multi("a", jute.OpMulti, parts...)
		r.children("a", "/m", false, true)
	}
	r.multi("a", jute.OpMulti, create("/m/x"), r.part(jute.OpGetData, "/m", false))
	r.multi("a", jute.OpMulti, r.part(jute.OpExists, "/m", false))
	r.multi("a", jute.OpMulti, r.part(99, "/m", false))
	r.children("a", "/m", false, true)
}

func multiReadProgram(r *runner) {
	r.create("a", jute.OpCreate, "/r", "root", 0)
	r.create("a", jute.OpCreate, "/r/a", "A", 0)
	r.createACL("a", jute.OpCreate, "/r/secret", "S", 0, []jute.ACL{{Perms: jute.PermAll, Scheme: "digest", ID: jute.Digest("u:p")}})
	get := func(p string, watch bool) multiPart { return r.part(jute.OpGetData, p, watch) }
	list := func(p string, watch bool) multiPart { return r.part(jute.OpGetChildren, p, watch) }
	r.multi("a", jute.OpMultiRead)
	r.multi("a", jute.OpMultiRead, get("/r", false), get("/none", false), list("/r", false), list("/none", false), get("/r/secret", false))
	r.multi("a", jute.OpMultiRead, get("/r", true), list("/r", true))
	r.set("a", "/r", "changed", -1)
	r.create("a", jute.OpCreate, "/r/b", "B", 0)
	r.multi("a", jute.OpMultiRead, get("/r", false), r.part(jute.OpCreate, "/r/x", []byte("x"), raw.OpenACL, 0))
	r.multi("a", jute.OpMultiRead, r.part(jute.OpExists, "/r", false))
	r.children("a", "/r", false, true)
}

func sessionProgram(r *runner) {
	r.create("a", jute.OpCreate, "/s", "", 0)
	r.create("b", jute.OpCreate, "/s/e1", "", jute.FlagEphemeral)
	r.create("b", jute.OpCreate, "/s/e2", "", jute.FlagEphemeral)
	r.create("b", jute.OpCreate, "/s/f", "", jute.FlagEphemeral)
	r.ephemerals("b", "/s/e")
	r.ephemerals("b", "")
	r.ephemerals("a", "/")
	r.exists("a", "/s/e1", true)
	r.children("a", "/s", true, false)
	r.exists("b", "/s/e2", true)
	r.reconnect("b")
	r.ephemerals("b", "/")
	r.exists("b", "/s/e1", false)
	r.exists("b", "/s/f", true)
	r.close("b")
	r.children("a", "/s", false, true)
	r.ping("a")
	r.close("a")
}

func specialProgram(r *runner) {
	for _, p := range []string{"/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
		r.delete("a", p, -1)
		r.getACL("a", p)
	}
	r.end(r.call("a", jute.OpDelete, "/", -1))
	r.create("a", jute.OpCreate2, "/zookeeper/config/x", "", 0)
	r.set("a", "/zookeeper/config", "x", -1)
	r.end(r.call("a", jute.OpReconfig, "", "", "", int64(-1)))
	r.end(r.call("a", jute.OpCreate, "/", []byte{}, raw.OpenACL, 0))
	r.ping("a")
	r.fatal("a", 60)
	r.fatal("a", 108)
	r.ping("a")
}

func malformedProgram(r *runner) {
	for _, op := range []int32{
		jute.OpCreate, jute.OpCreate2, jute.OpDelete, jute.OpSetData, jute.OpSetACL, jute.OpMulti, jute.OpExists, jute.OpGetData,
		jute.OpGetACL, jute.OpGetChildren, jute.OpGetChildren2, jute.OpSync, jute.OpMultiRead, jute.OpSetWatches, jute.OpSetWatches2,
		jute.OpAddWatch, jute.OpCheckWatches, jute.OpRemoveWatches, jute.OpGetEphemerals, jute.OpGetAllChildrenNumber, jute.OpCreateTTL,
	} {
		r.conn("a")
		reply, err := r.conn("a").Call(op, nil)
		r.logf("%s without a body: code %d, body %d, lost %v\n", jute.OpName(op), reply.Err, len(reply.Body), err != nil)
		if err != nil {
			r.lost("a")
		}
	}
	r.addWatch("a", "/", 7)
	r.watches("a", jute.OpCheckWatches, "/", 9)
}
