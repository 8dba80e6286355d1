package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// truths is a host whose parts go wrong by files that a test makes.
const truths = `
agent {
  id        = "host-one"
  state_dir = "%[1]s/state"
}
admin { socket = "%[1]s/sock" }
http { listen = "%[3]s" }
zookeeper { servers = ["%[2]s"] }
config "one" { path = "/config/one" }
group "peers" {
  path     = "/services/peers"
  on_empty = "keep"
  guard { max_loss = "100%%" }
}
service "one" {
  group   = "/services/one"
  address = "127.0.0.1"
  port    = 80
  check "exec" {
    command  = ["test", "!", "-e", "%[1]s/service"]
    interval = "1s" # and so long may a run take
    rise     = 1
    fall     = 2
  }
}
hook "noted" {
  on_change = [config.one]
  command   = ["true"]
}
template "checked" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/checked.conf"
  check { command = ["test", "!", "-e", "%[1]s/check"] }
}
template "reloaded" {
  contents    = "{{ key \"one/word\" }}\n"
  destination = "%[1]s/reloaded.conf"
  reload {
    command      = ["test", "!", "-e", "%[1]s/reload"]
    min_interval = "10ms"
    on_failure   = "keep"
    retry        = 0
  }
}
template "keyed" {
  contents    = "{{ key \"one/word\" }} {{ key \"one/other\" }}\n"
  destination = "%[1]s/keyed.conf"
}
template "peers" {
  contents    = "{{ key \"one/word\" }}{{ range members \"peers\" }} {{ .Host }}{{ end }}\n"
  destination = "%[1]s/peers.conf"
}
`

// truthFaults are what can be wrong, with what every view has to make of it.
var truthFaults = map[string]fleet.Health{
	"service": fleet.Failing, "check": fleet.Failing, "reload": fleet.Failing, "key": fleet.Failing, "peers": fleet.Degraded, "maintenance": fleet.Maintenance,
}

// truthSubjects are what the conditions of the faults are about.
var truthSubjects = map[string]string{"service": "one", "check": "checked", "reload": "reloaded", "key": "keyed", "peers": "peers"}

// truth is an agent that runs beside the test.
type truth struct {
	t      *testing.T
	dir    string
	http   string
	env    []string
	server *memzk.Server
	addr   string // of the server
	s      *session.Session
	stop   func() // the agent, once
	kill   func() // the agent, without a word

	peers int // members that were made
}

func newTruth(t *testing.T) *truth {
	t.Helper()
	x := newTruthServer(t)
	if err := x.s.CreateParents(t.Context(), "/services/peers/x"); err != nil {
		t.Fatal(err)
	}
	x.publish(0, nil)
	x.set(nil)
	x.settings(fmt.Sprintf(truths, x.dir, x.addr, x.http))
	x.start()
	x.agree(nil) // once it runs
	return x
}

// newTruthServer is the place of an agent: a directory and a server, without settings.
func newTruthServer(t *testing.T) *truth {
	t.Helper()
	x := &truth{t: t, dir: filepath.Dir(socketPath(t)), http: freeAddress(t)}
	x.server, x.addr, x.s = inMemoryServer(t)
	x.env = append(os.Environ(), "ZKAGENT_CONFIG="+filepath.Join(x.dir, "zkagent.hcl"), "NO_COLOR=1")
	t.Cleanup(func() { x.stop() })
	return x
}

// settings writes the settings.
func (x *truth) settings(text string) {
	x.t.Helper()
	if err := os.WriteFile(filepath.Join(x.dir, "zkagent.hcl"), []byte(text), 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// start starts the agent.
func (x *truth) start() {
	x.t.Helper()
	log, err := os.Create(filepath.Join(x.dir, "log"))
	if err != nil {
		x.t.Fatal(err)
	}
	agent := exec.Command("zkagent", "run")
	agent.Env, agent.Stdout, agent.Stderr = x.env, log, log
	if err := agent.Start(); err != nil {
		x.t.Fatal(err)
	}
	end := func(sig os.Signal) {
		_ = agent.Process.Signal(sig)
		_ = agent.Wait()
		_ = log.Close()
		if x.t.Failed() {
			x.t.Log(x.log())
		}
	}
	var once sync.Once
	x.stop = func() { once.Do(func() { end(os.Interrupt) }) }
	x.kill = func() { once.Do(func() { end(os.Kill) }) }
}

// log is what the agent that was started last has logged.
func (x *truth) log() string {
	data, err := os.ReadFile(filepath.Join(x.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// publish gives the agent something to do, with or without the key that a template
// needs.
func (x *truth) publish(n int, faults []string) {
	x.t.Helper()
	keys := map[string][]byte{"word": strconv.AppendInt(nil, int64(n), 10), "other": []byte("here")}
	if slices.Contains(faults, "key") {
		delete(keys, "other")
	}
	if _, err := fleet.Publish(x.t.Context(), x.s, fleet.PublishConfig{Path: "/config/one", Keys: keys, Force: true}); err != nil {
		x.t.Fatal(err)
	}
}

// set makes the faults, and takes all others away.
func (x *truth) set(faults []string) {
	x.t.Helper()
	for _, name := range []string{"service", "check", "reload"} {
		path := filepath.Join(x.dir, name)
		if slices.Contains(faults, name) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				x.t.Fatal(err)
			}
		} else if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			x.t.Fatal(err)
		}
	}
	names, _, err := x.s.Children(x.t.Context(), "/services/peers")
	switch gone := slices.Contains(faults, "peers"); {
	case err != nil:
	case gone && len(names) > 0:
		err = x.s.Delete(x.t.Context(), "/services/peers/"+names[0], -1)
	case !gone && len(names) == 0: // another one each time: one that comes and goes is damped
		x.peers++
		name := fmt.Sprintf("p%d", x.peers)
		data := fmt.Appendf(nil, `{"host":"127.0.0.1","port":%d,"name":"%s"}`, 9000+x.peers, name)
		_, _, err = x.s.Create(x.t.Context(), "/services/peers/"+name, data, session.Persistent)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// maintain takes the host into maintenance, or out of it.
func (x *truth) maintain(args ...string) {
	x.t.Helper()
	if code, out := x.run(append([]string{"maint"}, args...)...); code != 0 {
		x.t.Fatalf("maint %v: %d %s", args, code, out)
	}
}

// worst is what the faults have to come to.
func worst(faults []string) fleet.Health {
	want := fleet.OK
	for _, f := range faults {
		if h := truthFaults[f]; h.Rank() < want.Rank() {
			want = h
		}
	}
	return want
}

// run runs a command in this process, which costs a tenth of a process of its own.
func (x *truth) run(args ...string) (int, string) {
	x.t.Helper()
	var out, talk bytes.Buffer
	code := run(append([]string{"--config", filepath.Join(x.dir, "zkagent.hcl")}, args...), strings.NewReader(""), &out, &talk)
	return code, out.String()
}

// asked is the status as the socket has it; empty while no agent answers.
func (x *truth) asked() *show.Status {
	s, err := web.NewClient(filepath.Join(x.dir, "sock")).Status(x.t.Context())
	if err != nil {
		return &show.Status{}
	}
	return s
}

func (x *truth) get(path string) string {
	x.t.Helper()
	r, err := http.Get("http://" + x.http + path)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	data, _ := io.ReadAll(r.Body)
	return string(data)
}

// views are the words of health of every view, by view. Without ZooKeeper the fleet
// cannot be asked.
func (x *truth) views(online bool) map[string]string {
	first := func(form, text string) string {
		if m := regexp.MustCompile(form).FindStringSubmatch(text); m != nil {
			return m[1]
		}
		return "nothing in " + text[:min(len(text), 300)]
	}
	views := map[string]string{}
	_, text := x.run("status")
	views["status"] = first(`^host-one: ([a-z]+); `, text)
	_, text = x.run("status", "-o", "json")
	var doc struct{ Status struct{ Health string } }
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		x.t.Fatal(err)
	}
	views["json"] = doc.Status.Health
	_, text = x.run("status", "-o", "yaml")
	var same struct{ Status struct{ Health string } }
	if err := yaml.Unmarshal([]byte(text), &same); err != nil {
		x.t.Fatal(err)
	}
	views["yaml"] = same.Status.Health
	code, text := x.run("status", "--check")
	words := map[string]string{"0 OK": "ok", "0 MAINTENANCE": "maintenance", "1 WARNING": "degraded", "2 CRITICAL": "failing"}
	views["check"] = words[fmt.Sprint(code, " ", first(`^ZKAGENT ([A-Z]+) - `, text))]
	views["metrics"] = first(`zkagent_health\{health="([a-z]+)"\} 1\n`, x.get("/metrics"))
	views["page"] = first(`id="health"[^>]*>([a-z]+)`, x.get("/agent"))
	if !online {
		return views
	}
	_, text = x.run("fleet")
	views["fleet"] = first(`(?m)^host-one +([a-z]+) `, text)
	summary := first(`(?m)^1 host(, all healthy|: 1 [a-z]+)$`, text)
	views["summary"] = strings.NewReplacer(", all healthy", "ok", ": 1 ", "").Replace(summary)
	_, text = x.run("fleet", "-o", "json")
	var agents struct{ Agents []struct{ Health string } }
	if err := json.Unmarshal([]byte(text), &agents); err != nil {
		x.t.Fatalf("%v: %s", err, text)
	}
	views["fleet json"] = fmt.Sprintf("%d hosts", len(agents.Agents))
	if len(agents.Agents) == 1 {
		views["fleet json"] = agents.Agents[0].Health
	}
	return views
}

// TestTruth drives an agent through random faults. After each step every view says
// the same word, and it is ok only when everything that is wanted is in place.
func TestTruth(t *testing.T) {
	t.Parallel()
	x := newTruth(t)
	r := rand.New(rand.NewPCG(21, 1))
	names := []string{"check", "key", "peers", "reload", "service"}
	steps := [][]string{{"service"}, {"reload"}, {"peers"}, nil, {"check"}, {"key"}}
	for range testhelp.Rounds(1, 4) {
		steps = append(steps, slices.DeleteFunc(slices.Clone(names), func(string) bool { return r.IntN(3) > 0 }))
	}
	steps = append(steps, nil)
	for n, faults := range steps {
		x.maintain("off")
		x.set(faults)
		x.publish(n+1, faults)
		x.agree(faults)
		if r.IntN(3) == 0 { // the versions stay, and the service is out on purpose
			x.maintain("on", "--reason", "disks")
			x.agree(append(slices.DeleteFunc(slices.Clone(faults), func(f string) bool { return f == "service" }), "maintenance"))
		}
	}
}

// TestTruth_Outage: without ZooKeeper, the status and the list of members call old what was
// read from it, a registration too, and say since when.
func TestTruth_Outage(t *testing.T) {
	t.Parallel()
	x := newTruth(t)
	x.server.Stop()
	testhelp.Eventually(t, "the outage", func() bool { return x.asked().Health == fleet.Degraded })
	_, text := x.run("status")
	for _, row := range []string{"service +one +old", "config +one +old", "group +peers +old"} {
		if !regexp.MustCompile(row + ` .* as of 20..-..-..T`).MatchString(text) {
			t.Errorf("no %q in\n%s", row, text)
		}
	}
	var out, talk bytes.Buffer
	args := []string{"--config", filepath.Join(x.dir, "zkagent.hcl"), "members", "peers", "--here"}
	if code := run(args, strings.NewReader(""), &out, &talk); code != 0 || !strings.Contains(talk.String(), "not up to date: ZooKeeper is suspended, as of 20") {
		t.Errorf("%d: %s%s", code, &talk, &out)
	}
}

// agreeOn waits until every view says the word.
func (x *truth) agreeOn(want fleet.Health, why any, online bool) {
	x.t.Helper()
	x.agreeOnNow(func() fleet.Health { return want }, why, online)
}

// agreeOnNow is agreeOn with a word that may change meanwhile.
func (x *truth) agreeOnNow(now func() fleet.Health, why any, online bool) {
	x.t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		want, wrong := now(), ""
		for x.asked().Health != want && time.Now().Before(deadline) { // A view costs a process.
			<-tick.C
			want = now()
		}
		for view, word := range x.views(online) {
			if word != string(want) {
				wrong += fmt.Sprintf("\n%s says %q", view, word)
			}
		}
		if wrong == "" {
			break
		}
		if time.Now().After(deadline) {
			_, status := x.run("status", "-o", "wide")
			x.t.Fatalf("with the faults %v every view has to say %s:%s\n%s", why, want, wrong, status)
		}
		for range 3 { // The record of the fleet follows within seconds.
			<-tick.C
		}
	}
}

// agree waits until every view says the word, and compares what stands below it.
func (x *truth) agree(faults []string) {
	x.t.Helper()
	testhelp.Eventually(x.t, "the conditions of earlier faults to close", func() bool {
		s := x.asked()
		return s.Health != "" && !slices.ContainsFunc(s.Conditions, func(c condition.Condition) bool {
			return !slices.ContainsFunc(faults, func(f string) bool { return truthSubjects[f] == c.Subject })
		})
	})
	want := worst(faults)
	x.agreeOn(want, faults, true)
	_, text := x.run("status", "-o", "json")
	var doc struct {
		Status struct {
			Summary    string
			Conditions []condition.Condition
			Templates  []struct{ Name, State string }
			Services   []struct{ Name, State string }
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		x.t.Fatal(err)
	}
	bad := 0
	for _, row := range slices.Concat(doc.Status.Templates, doc.Status.Services) {
		if row.State != "ok" && row.State != "registered" && row.State != "maintenance" {
			bad++
		}
	}
	well := 0
	for _, row := range doc.Status.Templates {
		if row.State == "ok" {
			well++
		}
	}
	if !strings.HasPrefix(doc.Status.Summary, fmt.Sprintf("%d template", well)) {
		x.t.Errorf("%d templates are well, and the summary says %q", well, doc.Status.Summary)
	}
	if well := want == fleet.OK || want == fleet.Maintenance; well != (bad == 0) || well != (len(doc.Status.Conditions) == 0) {
		x.t.Errorf("the host is %s, with %d rows that are not well and the conditions %v:\n%s", want, bad, doc.Status.Conditions, text)
	}
	x.advice(faults)
	metrics := x.get("/metrics")
	for _, c := range doc.Status.Conditions {
		if line := fmt.Sprintf("zkagent_condition{code=%q,subject=%q} 1\n", c.Code, c.Subject); !strings.Contains(metrics, line) {
			x.t.Errorf("the metrics lack %s", line)
		}
	}
}

// advice runs every command that a view prints in this state. What a command finds out
// or tries may be bad: the state is.
func (x *truth) advice(faults []string) {
	x.t.Helper()
	texts := x.get("/agent") + x.get("/services") + x.get("/")
	for _, args := range [][]string{{"status", "-o", "wide"}, {"fleet"}, {"fleet", "--services"}} {
		_, text := x.run(args...)
		texts += text
	}
	done := map[string]bool{}
	for _, m := range printedCommand.FindAllStringSubmatch(texts, -1) {
		args := strings.Fields(strings.NewReplacer(" NAME -- COMMAND", " x -- true").Replace(html.UnescapeString(m[1])))[1:]
		if line := strings.Join(args, " "); done[line] || args[0] == "run" {
			continue
		} else {
			done[line] = true
		}
		tries := args[0] == "render" || args[0] == "doctor" || args[0] == "hooks"
		finds := args[0] == "validate" && slices.Contains(faults, "settings-invalid")
		away := slices.ContainsFunc([]string{"zookeeper-unreachable", "zookeeper-refused", "last-known-good", "last-good-damaged"}, func(code string) bool { return slices.Contains(faults, code) })
		if code, out := x.run(args...); code != 0 && (!tries || code != exitFailed) && (!finds || code != exitConfig) && (!away || code != exitUnavailable && code != exitPermission) {
			x.t.Errorf("with the faults %v a view prints %q, which ends with %d: %s", faults, m[1], code, out)
		}
	}
	quiet := slices.ContainsFunc(condition.Kinds(), func(e *condition.Kind) bool {
		return slices.Contains(faults, e.Code) && !strings.Contains(e.Do, "`zkagent ")
	})
	if len(faults) > 0 && faults[0] != "maintenance" && len(done) == 0 && !quiet {
		x.t.Errorf("with the faults %v no view says what to do", faults)
	}
	x.t.Logf("%v: %v", faults, slices.Sorted(maps.Keys(done)))
}

// freeAddress is an address of this host on which nobody listens. Its port is below
// those that the kernel gives to outgoing connections.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}
