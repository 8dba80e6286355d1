package memzk

import (
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

func aclProgram(r *runner) {
	owner := jute.ACL{Perms: jute.PermAll, Scheme: "digest", ID: jute.Digest("u:p")}
	readers := jute.ACL{Perms: jute.PermRead, Scheme: "world", ID: "anyone"}
	r.auth("owner", "digest", "u:p")
	r.createACL("owner", jute.OpCreate, "/auth", "x", 0, []jute.ACL{{Perms: jute.PermAll, Scheme: "auth", ID: "whoever"}})
	r.createACL("owner", jute.OpCreate, "/mixed", "x", 0, []jute.ACL{owner, readers, owner})
	r.createACL("owner", jute.OpCreate, "/mixed/child", "x", 0, raw.OpenACL)
	r.createACL("owner", jute.OpCreate, "/ip", "x", 0, []jute.ACL{{Perms: jute.PermAll, Scheme: "ip", ID: "127.0.0.0/8"}})
	r.createACL("owner", jute.OpCreate, "/otherip", "x", 0, []jute.ACL{{Perms: jute.PermAll, Scheme: "ip", ID: "10.1.2.3"}})
	r.createACL("owner", jute.OpCreate, "/nothing", "x", 0, []jute.ACL{{Perms: 0, Scheme: "world", ID: "anyone"}})
	r.createACL("owner", jute.OpCreate, "/admin", "x", 0, []jute.ACL{{Perms: jute.PermAdmin, Scheme: "world", ID: "anyone"}})
	for _, who := range []string{"owner", "stranger"} {
		for _, p := range []string{"/auth", "/mixed", "/ip", "/otherip", "/nothing", "/admin"} {
			r.get(who, p, false)
			r.exists(who, p, false)
			r.children(who, p, false, true)
			r.getACL(who, p)
			r.set(who, p, "y", -1)
			r.create(who, jute.OpCreate, p+"/new", "", 0)
			r.delete(who, p+"/none", -1)
			r.delete(who, p+"/new", -1)
			r.count(who, p)
			r.multi(who, jute.OpMulti, r.part(jute.OpCheck, p, int32(-1)))
			r.setACL(who, p+"/none", -1, readers)
		}
	}
	r.delete("stranger", "/mixed/child", -1)
	r.setACL("stranger", "/mixed", -1, readers)
	r.setACL("owner", "/mixed", 7, readers)
	r.setACL("owner", "/mixed", 0, readers)
	r.getACL("owner", "/mixed")
	r.setACL("owner", "/mixed", -1, owner)
	r.delete("stranger", "/auth", -1)
}

func invalidACLProgram(r *runner) {
	for _, acl := range [][]jute.ACL{
		{},
		{{Perms: 31, Scheme: "world", ID: "nobody"}},
		{{Perms: 31, Scheme: "auth", ID: ""}},
		{{Perms: 31, Scheme: "digest", ID: "nocolon"}},
		{{Perms: 31, Scheme: "digest", ID: "a:b:c"}},
		{{Perms: 31, Scheme: "digest", ID: "a:b"}},
		{{Perms: 31, Scheme: "digest", ID: "a:"}},
		{{Perms: 31, Scheme: "digest", ID: ":b"}},
		{{Perms: 31, Scheme: "ip", ID: "1.2.3"}},
		{{Perms: 31, Scheme: "ip", ID: "1.2.3.4/33"}},
		{{Perms: 31, Scheme: "ip", ID: "1.2.3.4/8"}},
		{{Perms: 31, Scheme: "unknown", ID: "x"}},
		{{Perms: 31, Scheme: "", ID: ""}},
		{{Perms: 99, Scheme: "world", ID: "anyone"}},
		{{Perms: 31, Scheme: "world", ID: "anyone"}, {Perms: 31, Scheme: "unknown", ID: "x"}},
	} {
		r.createACL("a", jute.OpCreate, "/acl", "x", 0, acl)
		r.createACL("a", jute.OpCreate, "/none/acl", "x", 0, acl)
		r.setACL("a", "/acl", -1, acl...)
		r.setACL("a", "/none", -1, acl...)
		r.getACL("a", "/acl")
		r.delete("a", "/acl", -1)
	}
}

func authProgram(r *runner) {
	r.whoAmI("a")
	r.auth("a", "digest", "u:p")
	r.auth("a", "digest", "u:p")
	r.auth("a", "digest", "v:q")
	r.auth("a", "ip", "whatever")
	r.whoAmI("a")
	r.createACL("a", jute.OpCreate, "/mine", "x", 0, []jute.ACL{{Perms: jute.PermAll, Scheme: "auth", ID: ""}})
	r.getACL("a", "/mine")
	r.getACL("b", "/mine")
	r.auth("b", "world", "anyone")
	_, err := r.conn("b").ReadFrame()
	r.logf("b ended %v\n", err != nil)
	r.lost("b")
	r.reconnect("a")
	r.whoAmI("a")
	r.get("a", "/mine", false)
	r.auth("a", "digest", "u:p")
	r.get("a", "/mine", false)
}

func watchProgram(r *runner) {
	r.exists("w", "/x", true)
	r.exists("w", "/deep/er", true)
	r.get("w", "/x", true)
	r.children("w", "/x", true, true)
	r.children("w", "/", true, false)
	r.create("a", jute.OpCreate, "/x", "1", 0)
	r.get("w", "/x", true)
	r.exists("w", "/x", true)
	r.children("w", "/x", true, false)
	r.set("a", "/x", "2", -1)
	r.set("a", "/x", "3", -1)
	r.create("a", jute.OpCreate, "/x/c", "", 0)
	r.create("a", jute.OpCreate, "/x/d", "", 0)
	r.get("w", "/x/c", true)
	r.children("w", "/x/c", true, true)
	r.children("w", "/x", true, true)
	r.delete("a", "/x/c", -1)
	r.setACL("a", "/x", -1, raw.OpenACL...)
	r.get("w", "/x", true)
	r.get("a", "/x", true)
	r.set("a", "/x", "4", -1)
	r.children("w", "/x/d", true, true)
	r.delete("w", "/x/d", -1)
	r.create("a", jute.OpCreate, "/deep", "", 0)
	r.create("a", jute.OpCreate, "/deep/er", "", 0)
	r.exists("w", "/e", true)
	r.create("b", jute.OpCreate, "/e", "", jute.FlagEphemeral)
	r.get("w", "/e", true)
	r.close("b")
}

func persistentProgram(r *runner) {
	r.create("a", jute.OpCreate, "/t", "", 0)
	r.addWatch("rec", "/t", jute.AddWatchPersistentRecursive)
	r.addWatch("per", "/t", jute.AddWatchPersistent)
	r.addWatch("both", "/t/x", jute.AddWatchPersistent)
	r.addWatch("both", "/t", jute.AddWatchPersistentRecursive)
	for range 2 {
		r.create("a", jute.OpCreate, "/t/x", "", 0)
		r.create("a", jute.OpCreate, "/t/x/y", "", 0)
		r.set("a", "/t/x", "1", -1)
		r.set("a", "/t", "1", -1)
		r.delete("a", "/t/x/y", -1)
		r.delete("a", "/t/x", -1)
	}
	// On a server before 3.9 a one-shot watch replaces the recursive one.
	r.get("rec", "/t", true)
	r.create("a", jute.OpCreate, "/t/x", "", 0)
	r.set("a", "/t", "2", -1)
	r.set("a", "/t", "3", -1)
	r.set("a", "/t/x", "2", -1)
	r.children("per", "/t", true, true)
	r.create("a", jute.OpCreate, "/t/z", "", 0)
	r.create("a", jute.OpCreate, "/t/z2", "", 0)
	r.addWatch("per", "/t", jute.AddWatchPersistentRecursive)
	r.create("a", jute.OpCreate, "/t/z3", "", 0)
	r.addWatch("per", "/t", jute.AddWatchPersistent)
	r.create("a", jute.OpCreate, "/t/z4", "", 0)
	r.delete("a", "/t/z4", -1)
	r.addWatch("top", "/", jute.AddWatchPersistentRecursive)
	r.create("a", jute.OpCreate, "/other", "", 0)
	r.reconnect("rec")
	r.create("a", jute.OpCreate, "/t/gone", "", 0)
}

func removalProgram(r *runner) {
	r.create("a", jute.OpCreate, "/r", "", 0)
	arm := []func(){
		func() { r.get("w", "/r", true) },
		func() { r.children("w", "/r", true, false) },
		func() { r.exists("w", "/r", true); r.children("w", "/r", true, true) },
		func() { r.addWatch("w", "/r", jute.AddWatchPersistent) },
		func() { r.addWatch("w", "/r", jute.AddWatchPersistentRecursive) },
	}
	for _, f := range arm {
		for _, kind := range []int32{jute.WatcherChildren, jute.WatcherData, jute.WatcherAny} {
			f()
			for _, k := range []int32{jute.WatcherChildren, jute.WatcherData, jute.WatcherAny} {
				r.watches("w", jute.OpCheckWatches, "/r", k)
			}
			r.watches("w", jute.OpRemoveWatches, "/r", kind)
			r.watches("w", jute.OpRemoveWatches, "/r", kind)
			r.set("a", "/r", "x", -1)
			r.create("a", jute.OpCreate, "/r/c", "", 0)
			r.delete("a", "/r/c", -1)
			r.watches("w", jute.OpRemoveWatches, "/r", jute.WatcherAny)
		}
	}
	r.watches("w", jute.OpCheckWatches, "/none", jute.WatcherAny)
	for _, kind := range []int32{jute.WatcherPersistent, jute.WatcherPersistentRecursive} {
		r.watches("w", jute.OpCheckWatches, "/r", kind)
	}
}

func setWatchesProgram(r *runner) {
	for _, p := range []string{"/same", "/changed", "/kids", "/gone", "/both"} {
		r.create("a", jute.OpCreate, p, "1", 0)
	}
	r.get("w", "/same", false)
	r.set("a", "/changed", "2", -1)
	r.create("a", jute.OpCreate, "/kids/c", "", 0)
	r.delete("a", "/gone", -1)
	r.create("a", jute.OpCreate, "/new", "", 0)
	r.reconnect("w")
	// events ran a sync on w, so that w has seen everything: go five back.
	all := []string{"/same", "/changed", "/kids", "/gone", "/both", "/none"}
	r.setWatches("w", 4, all, []string{"/new", "/none", "/nope"}, all)
	r.set("a", "/same", "3", -1)
	r.set("a", "/changed", "3", -1)
	r.create("a", jute.OpCreate, "/nope", "", 0)
	r.create("a", jute.OpCreate, "/both/c", "", 0)
	r.setWatches("w", 0, nil, nil, nil, []string{"/same"}, []string{"/both"})
	r.set("a", "/same", "4", -1)
	r.create("a", jute.OpCreate, "/same/c", "", 0)
	r.set("a", "/both/c", "4", -1)
	r.set("a", "/both/c", "5", -1)
	r.delete("a", "/both/c", -1)
}

// unreadableProgram watches znodes that the watcher may not read.
func unreadableProgram(r *runner) {
	secret := []jute.ACL{{Perms: jute.PermAll, Scheme: "digest", ID: jute.Digest("u:p")}}
	r.auth("owner", "digest", "u:p")
	r.exists("w", "/s", true)
	r.createACL("owner", jute.OpCreate, "/s", "", 0, secret)
	r.exists("w", "/s", true)
	r.exists("owner", "/s", true)
	r.set("owner", "/s", "1", -1)
	r.set("owner", "/s", "2", -1)
	r.exists("w", "/s", true)
	r.delete("owner", "/s", -1)
	r.addWatch("rec", "/", jute.AddWatchPersistentRecursive)
	r.children("w", "/", true, false)
	r.createACL("owner", jute.OpCreate, "/s", "", 0, secret)
	r.createACL("owner", jute.OpCreate, "/s/open", "", 0, raw.OpenACL)
	r.set("owner", "/s/open", "1", -1)
	r.delete("owner", "/s/open", -1)
	r.delete("owner", "/s", -1)
	r.setWatches("w", 100, []string{"/s"}, []string{"/s"}, []string{"/s"})
	r.createACL("owner", jute.OpCreate, "/s", "", 0, secret)
	r.setWatches("w", 100, []string{"/s"}, []string{"/s"}, []string{"/s"})
}
