package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// everything is a host with something of each kind that can go wrong. %[4]s is what
// the trials add.
const everything = `
agent {
  id        = "host-one"
  state_dir = "%[1]s/state"
}
admin { socket = "%[1]s/sock" }
http { listen = "%[3]s" }
zookeeper {
  servers   = ["%[2]s"]
  read_only = true
}
config "one" { path = "/config/one" }
config "small" {
  path      = "/config/small"
  max_bytes = 1024
}
group "many" {
  path     = "/services/many"
  on_empty = "render"
}
election "one" { path = "/elections/one" }
service "one" {
  group   = "/services/one"
  address = "127.0.0.1"
  port    = 80
}
hook "noted" {
  on_change = [config.one]
  command   = ["true"]
}
hook "hourly" {
  schedule = "0 * * * *"
  command  = ["true"]
}
hook "lead" {
  leader    = election.one
  on_change = [config.one]
  command   = ["sh", "-c", "if [ -e %[1]s/hang ]; then touch %[1]s/hangs; exec sleep 600; fi; test ! -e %[1]s/lead"]
}
template "watched" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/watched.conf"
  drift       = "report"
}
template "sized" {
  contents    = "{{ key \"small/word\" }}\n"
  destination = "%[1]s/sized.conf"
}
template "many" {
  contents    = "{{ range members \"many\" }}{{ .Host }}:{{ .Port }}\n{{ end }}"
  destination = "%[1]s/many.conf"
}
template "each" {
  for_each    = config.one
  contents    = "{{ .Key }}\n"
  destination = "%[1]s/each-${each.key}.conf"
}
template "rolled" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/rolled.conf"
  reload {
    command = ["true"]
    rolling { permits = "1" }
  }
}
template "owing" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/owing.conf"
  reload {
    command      = ["sh", "-c", "test ! -e %[1]s/owing"]
    min_interval = "10ms"
    on_failure   = "keep"
    retry        = 0
  }
}
template "stuck" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/dir/stuck.conf"
  create_dirs = true
  reload {
    command      = ["sh", "-c", "if [ -e %[1]s/stuck ]; then rm -r %[1]s/dir; touch %[1]s/dir; exit 1; fi"]
    min_interval = "10ms"
    retry        = 0
  }
}
%[4]s`

// trial brings about one kind of condition, and ends it again.
type trial struct {
	code, subject string
	others        []string // codes of conditions that may come with it
	offline       bool     // the fleet cannot be asked
	begin, end    func(x *trials)
}

// trials is the agent with everything, and what its trials share.
type trials struct {
	*truth
	n    int // contents that were published
	held net.Listener
	also func()
}

func (x *trials) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *trials) file(name string) string { return filepath.Join(x.dir, name) }

func (x *trials) touch(name string) { x.must(os.WriteFile(x.file(name), nil, 0o600)) }

// remove removes a file or directory of the host.
func (x *trials) remove(name string) { x.must(os.RemoveAll(x.file(name))) }

// change publishes other content of /config/one.
func (x *trials) change(more ...string) {
	x.t.Helper()
	x.n++
	keys := map[string][]byte{"word": fmt.Append(nil, x.n)}
	for _, name := range more {
		keys[name] = []byte("more")
	}
	_, err := fleet.Publish(x.t.Context(), x.s, fleet.PublishConfig{Path: "/config/one", Keys: keys, Force: true})
	x.must(err)
}

// small publishes /config/small with a key of some bytes.
func (x *trials) small(size int) {
	x.t.Helper()
	keys := map[string][]byte{"word": []byte(strings.Repeat("x", size))}
	_, err := fleet.Publish(x.t.Context(), x.s, fleet.PublishConfig{Path: "/config/small", Keys: keys, Force: true})
	x.must(err)
}

// members makes the members of the group that have these numbers, and no others.
func (x *trials) members(from, to int) {
	x.t.Helper()
	names, err := x.server.Children("/services/many")
	x.must(err)
	for _, name := range names {
		x.must(x.server.Delete("/services/many/" + name))
	}
	for n := from; n < to; n++ {
		x.must(x.server.Create(fmt.Sprintf("/services/many/m%d", n), fmt.Appendf(nil, `{"host":"127.0.0.1","port":%d,"name":"m%d"}`, 9000+n, n)))
	}
}

// use gives the agent other settings, and loads them.
func (x *trials) use(more string) {
	x.t.Helper()
	x.settings(fmt.Sprintf(everything, x.dir, x.addr, x.http, more))
	if code, out := x.run("reload"); code != 0 {
		x.t.Fatalf("reload: %d %s", code, out)
	}
}

// without has the agent load settings that lack a block, and waits until no condition
// is open.
func (x *trials) without(block string) {
	x.t.Helper()
	text := fmt.Sprintf(everything, x.dir, x.addr, x.http, "")
	from := strings.Index(text, block)
	to := strings.Index(text[from:], "\n}\n")
	if from < 0 || to < 0 {
		x.t.Fatal("there is no ", block)
	}
	x.settings(text[:from] + text[from+to+3:])
	x.ok("reload")
	x.until("the end of all conditions without "+block, func(list []condition.Condition) bool { return len(list) == 0 })
}

// shards says who may write where subscribers of /config/one stand.
func (x *trials) shards(perms int32) {
	x.t.Helper()
	path, _ := session.SplitPath(fleet.SubscriptionPath("/config/one", "host-one"))
	x.deny(path, perms)
}

// again stops the agent, does what is to be done meanwhile, and starts it.
func (x *trials) again(meanwhile func()) {
	x.t.Helper()
	x.stop()
	meanwhile()
	x.start()
}

// open are the open conditions. An agent that does not answer yet has none.
func (x *trials) open() []condition.Condition {
	x.t.Helper()
	return x.asked().Conditions
}

// until waits until the conditions are as wanted.
func (x *trials) until(what string, ok func([]condition.Condition) bool) {
	x.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		list := x.open()
		if ok(list) {
			return
		}
		if time.Now().After(deadline) {
			_, out := x.run("status", "-o", "wide")
			x.t.Fatalf("waited in vain for %s: %v\n%s", what, list, out)
		}
		<-tick.C
	}
}

// deny lets nobody but the test write below a znode, or read it.
func (x *trials) deny(path string, perms int32) {
	x.must(x.server.SetACL(path, []jute.ACL{{Perms: perms, Scheme: "world", ID: "anyone"}}))
}

func (x *trials) allow(path string) { x.deny(path, session.PermAll) }

// conditionTrials are the kinds of conditions that one agent can come to.
func conditionTrials() []trial {
	return []trial{
		{
			code: "drift", subject: "watched.conf",
			begin: func(x *trials) { x.must(os.WriteFile(x.file("watched.conf"), []byte("by hand\n"), 0o600)) },
			end:   func(x *trials) { x.change() },
		},
		{
			code: "destination-taken", subject: "each-taken.conf",
			begin: func(x *trials) { x.touch("each-taken.conf"); x.change("taken") },
			end:   func(x *trials) { x.change(); x.remove("each-taken.conf") },
		},
		{
			code: "source-unusable", subject: "config small",
			begin: func(x *trials) { x.small(2000) },
			end:   func(x *trials) { x.small(3) },
		},
		{
			code: "source-gone", subject: "config small",
			begin: func(x *trials) { x.must(x.server.Delete("/config/small/ready")) },
			end:   func(x *trials) { x.small(4) },
		},
		{
			code: "members-held", subject: "many",
			begin: func(x *trials) { x.members(5, 6) },
			end:   func(x *trials) { x.members(0, 6) },
		},
		{
			code: "service-not-registered", subject: "one",
			begin: func(x *trials) { x.deny("/services/one", session.PermRead); x.again(func() {}) },
			end:   func(x *trials) { x.allow("/services/one") },
		},
		{
			code: "source-unusable", subject: "group many",
			begin: func(x *trials) {
				x.deny("/services/many", session.PermWrite)
				x.must(x.server.Create("/services/many/m6", nil))
			},
			end: func(x *trials) { x.must(x.server.Delete("/services/many/m6")); x.allow("/services/many") },
		},
		{
			code: "source-unusable", subject: "group many", // from the start
			begin:  func(x *trials) { x.deny("/services/many", session.PermWrite); x.again(func() {}) },
			end:    func(x *trials) { x.allow("/services/many") },
			others: []string{"waiting-for-sources", "last-known-good"},
		},
		{
			code: "unit-failed", subject: "election.one",
			begin: func(x *trials) { x.deny("/elections/one", session.PermRead); x.again(func() {}) },
			end:   func(x *trials) { x.allow("/elections/one") },
		},
		{
			code: "settings-invalid", offline: true, // commands that need ZooKeeper use the settings, too
			begin: func(x *trials) { x.settings(fmt.Sprintf(everything, x.dir, x.addr, x.http, "nonsense = 1\n")) },
			end:   func(x *trials) { x.use("") },
		},
		{
			code: "waiting-for-sources",
			begin: func(x *trials) {
				x.use(`config "late" { path = "/config/late" }
template "late" {
  contents    = "{{ key \"late/word\" }}"
  destination = "` + x.file("late.conf") + `"
}`)
			},
			end: func(x *trials) { x.use("") },
		},
		{
			code: "http-not-listening", subject: "held",
			begin: func(x *trials) {
				x.settings(fmt.Sprintf(everything, x.dir, x.addr, x.held.Addr(), ""))
				if code, out := x.run("reload"); code != 0 {
					x.t.Fatal(out)
				}
			},
			end: func(x *trials) { x.use("") },
		},
		{
			code: "dns-not-listening", subject: "held",
			begin: func(x *trials) { x.use(fmt.Sprintf("dns { listen = %q }\n", x.held.Addr())) },
			end:   func(x *trials) { x.use("") },
		},
		{
			code:  "agent-id-taken",
			begin: (*trials).twin,
			end:   func(x *trials) { x.also() },
		},
		{
			code: "reload-halted", subject: "rolled",
			begin: func(x *trials) {
				p, err := rolling.Acquire(x.t.Context(), x.s, rolling.Config{Agent: "host-two", Bundle: "rolled", Permits: "1", Logger: slog.New(slog.DiscardHandler)})
				x.must(err)
				sessions := func(context.Context) (*session.Session, error) { return x.s, nil }
				x.must(p.Release(x.t.Context(), sessions, &rolling.Halt{Bundle: "rolled", Host: "host-two", Reason: "bad banner", Time: time.Now()}))
				x.change()
			},
			end: func(x *trials) { _, _ = x.run("reload", "--clear-halt", "rolled") }, /* the advice may have done it */
		},
		{
			code: "reload-pending", subject: "owing",
			begin:  func(x *trials) { x.touch("owing"); x.change() },
			end:    func(x *trials) { x.remove("owing"); x.change() },
			others: []string{"reload-failed", "template-failed"},
		},
		{
			code: "restore-failed", subject: "stuck",
			begin:  func(x *trials) { x.touch("stuck"); x.change() },
			end:    func(x *trials) { x.remove("stuck"); x.remove("dir"); x.change() },
			others: []string{"reload-failed", "reload-pending", "template-failed"},
		},
		{
			code: "hook-failed", subject: "lead",
			begin: func(x *trials) { x.touch("lead"); x.change() },
			end:   func(x *trials) { x.remove("lead"); x.ok("hooks", "run", "lead") },
		},
		{
			code: "hook-ledger", subject: "noted",
			begin: func(x *trials) {
				x.again(func() { x.must(os.WriteFile(x.file("state/ledger/noted.json"), []byte("{"), 0o600)) })
			},
			end: func(x *trials) { x.remove("state/ledger/noted.json") },
		},
		{
			code: "hook-clock", subject: "hourly",
			begin: func(x *trials) {
				slot := fmt.Appendf(nil, `{"slot":{"at":%q,"state":"done","time":%[1]q}}`, time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339))
				x.again(func() { x.must(os.WriteFile(x.file("state/ledger/hourly.json"), slot, 0o600)) })
			},
			end: func(x *trials) { x.again(func() { x.remove("state/ledger/hourly.json") }) },
		},
		{
			code: "hook-unknown", subject: "lead",
			begin: func(x *trials) {
				x.touch("hang")
				x.change()
				x.await("the hook's run", func() bool { _, err := os.Stat(x.file("hangs")); return err == nil })
				x.kill()
				x.remove("hang")
				x.start()
			},
			end:    func(x *trials) { x.ok("hooks", "run", "lead") },
			others: []string{"guards-running"},
		},
		{
			code: "recover-failed",
			begin: func(x *trials) {
				x.again(func() { x.must(os.WriteFile(x.file("state/journal/watched.journal"), []byte("{"), 0o600)) })
			},
			end: func(x *trials) { x.again(func() {}) },
		},
		{
			code: "state-dir", subject: "state",
			begin: func(x *trials) {
				x.again(func() { x.remove("state/staged"); x.touch("state/staged") })
			},
			end: func(x *trials) { x.again(func() { x.remove("state/staged") }) },
		},
		{
			code:  "last-good-not-saved",
			begin: func(x *trials) { x.again(func() { x.remove("state/lastgood"); x.touch("state/lastgood") }); x.change() },
			end:   func(x *trials) { x.remove("state/lastgood"); x.change() },
		},
		{
			code: "last-good-damaged", offline: true, // with a server the agent saves a new view at once
			begin: func(x *trials) {
				x.again(func() {
					x.server.Stop()
					for _, name := range lastgood.Files(x.file("state")) {
						x.must(os.WriteFile(name, []byte("{"), 0o600))
					}
				})
			},
			end:    func(x *trials) { x.server.Start() },
			others: []string{"zookeeper-unreachable", "service-not-registered", "waiting-for-sources"},
		},
		{
			code: "drift", subject: "watched.conf", // of a template that the settings drop
			begin: func(x *trials) { x.must(os.WriteFile(x.file("watched.conf"), []byte("by hand\n"), 0o600)) },
			end:   func(x *trials) { x.without(`template "watched"`); x.use("") },
		},
		{
			code: "destination-taken", subject: "each-taken.conf",
			begin: func(x *trials) { x.touch("each-taken.conf"); x.change("taken") },
			end:   func(x *trials) { x.without(`template "each"`); x.remove("each-taken.conf"); x.change(); x.use("") },
		},
		{
			code: "hook-failed", subject: "lead",
			begin: func(x *trials) { x.touch("lead"); x.change() },
			end:   func(x *trials) { x.without(`hook "lead"`); x.remove("lead"); x.use("") },
		},
		{
			code: "hook-ledger", subject: "noted",
			begin: func(x *trials) {
				x.again(func() { x.must(os.WriteFile(x.file("state/ledger/noted.json"), []byte("{"), 0o600)) })
			},
			end: func(x *trials) { x.without(`hook "noted"`); x.remove("state/ledger/noted.json"); x.use("") },
		},
		{
			code: "reload-pending", subject: "owing",
			begin:  func(x *trials) { x.touch("owing"); x.change() },
			end:    func(x *trials) { x.without(`template "owing"`); x.remove("owing"); x.use("") },
			others: []string{"reload-failed", "template-failed"},
		},
		{
			code: "rollouts-not-followed", subject: "one",
			begin: func(x *trials) { x.shards(session.PermRead); x.again(func() {}) },
			end:   func(x *trials) { x.shards(session.PermAll) },
		},
		{
			code: "zookeeper-unreachable", offline: true,
			begin: func(x *trials) { x.server.Stop() },
			end:   func(x *trials) { x.server.Start() },
		},
		{
			code: "zookeeper-refused", offline: true,
			begin: func(x *trials) {
				x.again(func() {
					x.server.RefuseWith(jute.OpAuth, jute.ErrCodeAuthFailed)
					auth := "zookeeper {\n  auth \"digest\" { credential = \"a:b\" }"
					x.settings(strings.Replace(fmt.Sprintf(everything, x.dir, x.addr, x.http, ""), "zookeeper {", auth, 1))
				})
			},
			end: func(x *trials) {
				x.again(func() { x.settings(fmt.Sprintf(everything, x.dir, x.addr, x.http, "")) })
			},
			others: []string{"last-known-good", "service-not-registered", "waiting-for-sources"},
		},
		{
			code: "last-known-good", offline: true,
			begin:  func(x *trials) { x.again(x.server.Stop) },
			end:    func(x *trials) { x.server.Start() },
			others: []string{"zookeeper-unreachable", "service-not-registered", "waiting-for-sources"},
		},
		{
			code: "zookeeper-read-only", offline: true,
			begin: func(x *trials) { x.server.SetReadOnly(true) },
			end:   func(x *trials) { x.server.SetReadOnly(false) },
		},
	}
}

// twin starts another agent with the same id.
func (x *trials) twin() {
	x.t.Helper()
	dir := filepath.Dir(socketPath(x.t))
	file := filepath.Join(dir, "zkagent.hcl")
	text := fmt.Sprintf("agent {\n  id = \"host-one\"\n  state_dir = %q\n}\nadmin { socket = %q }\nzookeeper { servers = [%q] }\n", dir, filepath.Join(dir, "sock"), x.addr)
	x.must(os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.Command("zkagent", "run", "--config", file)
	cmd.Env = x.env
	x.must(cmd.Start())
	x.also = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	x.t.Cleanup(x.also)
}

// ok runs a command that must succeed.
func (x *trials) ok(args ...string) {
	x.t.Helper()
	if code, out := x.run(args...); code != 0 {
		x.t.Fatalf("zkagent %v: %d %s", args, code, out)
	}
}

func (x *trials) await(what string, ok func() bool) {
	x.t.Helper()
	x.until(what, func([]condition.Condition) bool { return ok() })
}

// subject is the subject as the agent names it.
func (x *trials) subject(c trial) string {
	switch {
	case c.subject == "held":
		return x.held.Addr().String()
	case strings.HasSuffix(c.subject, ".conf"), c.code == "state-dir":
		return x.file(c.subject)
	}
	return c.subject
}

// TestTruth_Conditions brings about one condition after the other on a real agent:
// every view shows it with one word of health, the commands that the views print run,
// and nothing of it is left when its cause is gone. It takes half of them each day.
func TestTruth_Conditions(t *testing.T) {
	testhelp.OnlyAll(t, "some fifty conditions, of which each waits for its end")
	t.Parallel()
	all := slices.DeleteFunc(conditionTrials(), func(c trial) bool { return !testhelp.Today(c.code+c.subject, 2) })
	const agents = 4 // at a time: each trial waits for most of its time
	for n := range agents {
		t.Run(fmt.Sprint("agent ", n), func(t *testing.T) {
			t.Parallel()
			x := newTrials(t)
			for i := n; i < len(all) && !t.Failed(); i += agents {
				x.try(all[i])
			}
		})
	}
}

// newTrials starts an agent with everything.
func newTrials(t *testing.T) *trials {
	t.Helper()
	x := &trials{truth: newTruthServer(t)}
	var err error
	x.held, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", freeAddress(t))
	x.must(err)
	t.Cleanup(func() { _ = x.held.Close() })
	for _, path := range []string{"/services/many/m", "/services/one/m"} {
		x.must(x.s.CreateParents(t.Context(), path))
	}
	x.change()
	x.small(3)
	x.members(0, 6)
	x.settings(fmt.Sprintf(everything, x.dir, x.addr, x.http, ""))
	x.start()
	x.agreeOn(fleet.OK, "nothing", true)
	return x
}

// try brings a condition about, compares the views, and ends it.
func (x *trials) try(c trial) {
	outer := x.t
	defer func() { x.t = outer }()
	outer.Run(c.code, func(t *testing.T) {
		x.t = t
		c.begin(x)
		x.see(c)
		c.end(x)
		x.until("the end of "+c.code, x.settled)
		x.agreeOnNow(func() fleet.Health {
			x.settled(x.open()) // Hooks that a restart found open show after the start's other conditions.
			return fleet.OK
		}, "nothing after "+c.code, true)
	})
}

// settled reports whether no condition is open. It runs hooks whose outcome is unknown: a
// stop may come in the middle of the runs of several.
func (x *trials) settled(list []condition.Condition) bool {
	x.t.Helper()
	for _, c := range list {
		if c.Code == "hook-unknown" && len(list) <= 2 {
			_, _ = x.run("hooks", "run", c.Subject)
		}
	}
	return len(list) == 0
}

// see compares the views while the condition is open.
func (x *trials) see(c trial) {
	x.t.Helper()
	subject := x.subject(c)
	named := func(o condition.Condition) bool { return o.Code == c.code && o.Subject == subject }
	x.until(c.code, func(list []condition.Condition) bool {
		return slices.ContainsFunc(list, named) && !slices.ContainsFunc(list, func(o condition.Condition) bool {
			// A start has some for a moment, and a stop may come in the middle of a hook's run.
			return !named(o) && o.Code != "hook-unknown" && !slices.Contains(c.others, o.Code)
		})
	})
	want := fleet.Degraded
	x.agreeOnNow(func() fleet.Health { // a start may open others after this one
		want = fleet.Degraded
		if slices.ContainsFunc(x.open(), func(c condition.Condition) bool { return c.Kind().Failing }) {
			want = fleet.Failing
		}
		return want
	}, c.code, !c.offline)
	name := condition.Condition{Code: c.code, Subject: subject}.Name()
	shown := map[string]string{
		"metrics": fmt.Sprintf("zkagent_condition{code=%q,subject=%q} 1\n", c.code, subject),
		"page":    `data-key="` + name + `"`, "status": name, "check": name,
	}
	texts := map[string]string{"metrics": x.get("/metrics"), "page": x.get("/")}
	_, texts["status"] = x.run("status")
	_, texts["check"] = x.run("status", "--check")
	if !c.offline && len(c.others) == 0 { // of several the fleet shows the first
		shown["fleet"] = name
		_, texts["fleet"] = x.run("fleet", "-o", "wide")
	}
	for view, want := range shown {
		if !strings.Contains(texts[view], want) {
			x.t.Errorf("%s does not show %q:\n%s", view, want, texts[view])
		}
	}
	x.advice([]string{c.code})
	x.t.Logf("%s: %s", want, name)
}
