package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v2"
	"golang.org/x/term"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// hostilePlain is text that the quoting helpers can write, and hostileWords adds text
// that they refuse.
var (
	hostilePlain = []string{
		`x; } server { listen 6.6.6.6; } #`, `"; } pl4nted { "`, `' pl4nted '`, `\" pl4nted \`, `\`, "include", "default", "hostnames", "~pl4nted", "*.pl4nted",
		`</td></script><pl4nted a="`, `" onmouseover="pl4nted`, `javascript:pl4nted`, "`id`", "$(id)", "-rf", "#", " ", "\t", "&amp;", "a, b", "\u202epl4nted", "\u009b2Jpl4nted",
		"{{ pl4nted }}", "a | b && c > d", "1", strings.Repeat("n", 2000),
	}
	hostileWords = append([]string{pwn, "pl4nted\n\r\nerror: pl4nted", "a\x00b", "$pl4nted", "%[env(HOME)]", "..", "a/../b", strings.Repeat("l", 5000), "\x7f\x80\xff"}, hostilePlain...)
)

// hostileSettings is an agent that reads everything.
const hostileSettings = `
agent {
  id        = "a1"
  state_dir = "%[1]s/state"
}
log { level = "error" }
admin { socket = "%[1]s/s" }
http { listen = "%[3]s" }
zookeeper { servers = ["%[2]s"] }
config "shop" { path = "/config/shop" }
config "flat" { path = "/config/flat" }
config "plain" {
  path   = "/plain"
  layout = "plain"
}
config "end" {
  path   = "/end"
  layout = "plain"
}
groups "all" {
  path     = "/services"
  on_empty = "render"
}
election "e" { path = "/zkagent/elections/e" }
template "nginx" {
  contents    = "map $host $plain {\n{{ range tree \"plain\" }}{{ nginxMapKey .Key }} {{ nginxString .Value }};\n{{ end }}}\n"
  destination = "%[1]s/map.conf"
}
template "haproxy" {
  contents    = "defaults\n  mode http\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\nlisten b\n  bind 127.0.0.1:1\n{{ range tree \"plain\" }}  http-response set-header X-Key {{ haproxyToken .Key }}\n  http-response set-header X-Value {{ haproxyToken .Value }}\n{{ end }}"
  destination = "%[1]s/haproxy.cfg"
}
template "shell" {
  contents    = "set --{{ range tree \"plain\" }} {{ shellQuote .Key }} {{ shellQuote .Value }}{{ end }}\n"
  destination = "%[1]s/words.sh"
}
template "json" {
  contents    = "{{ range tree \"shop\" }}{{ toJSON .Value }}\n{{ end }}{{ range tree \"flat\" }}{{ toJSON .Value }}\n{{ end }}{{ toJSON (groups \"all\") }}\n{{ toJSON (leader \"e\") }}\n"
  destination = "%[1]s/all.json"
}
template "end" {
  contents    = "{{ key \"end/n\" }}"
  destination = "%[1]s/end"
}
template "rolled" {
  contents    = "{{ key \"shop/banner\" }}"
  destination = "%[1]s/rolled"
  reload {
    command = ["true"]
    rolling { permits = "1" }
  }
}
`

// hostileReads are command lines of the commands that show what others have written.
// SITE is a directory with keys, ZNODE a znode, DIR the directory of the world. Behind
// "text" are those that print no document with -o json.
var hostileReads = map[string]string{
	"audit":          "audit; audit /config/shop",
	"blame":          "blame DIR/all.json; blame json --missing pl4nted",
	"barrier wait":   "barrier wait b --wait 1ms",
	"config diff":    "config diff /config/shop; config diff /config/shop 1 2",
	"config export":  "config export /config/shop DIR/export-shop; config export /config/flat DIR/export-flat",
	"config get":     "config get /config/shop; config get /config/flat; config get /config/shop banner; config get /config/shop --keys",
	"config list":    "config list; config list /config",
	"config history": "config history /config/shop; config history /config/shop -p; config history /config/flat",
	"config plan":    "config plan SITE /config/shop",
	"config schema":  "text config schema /config/shop",
	"debug":          "text debug --file DIR/debug.tar.gz",
	"diff":           "diff DIR/all.json@1 DIR/all.json",
	"doctor":         "doctor",
	"elect":          "elect --list /zkagent/elections/e; elect --observe --once /zkagent/elections/e",
	"events":         "events",
	"explain":        "explain DIR/all.json; explain json pl4nted",
	"fleet":          "fleet; text fleet -o wide; fleet /config/shop; fleet --services; fleet web",
	"haproxy":        "text haproxy --once --socket DIR/haproxy.sock --backend web /services/web",
	"history":        "history json",
	"hooks list":     "hooks list",
	"lock":           "lock --list l; lock -n l -- true",
	"members":        "members; text members -o wide; members --here; members /services/web; members /g/nerve --format nerve; members /g/curator; members /g/kafka-broker; members /g/text",
	"queue len":      "queue len q",
	"queue ls":       "queue ls q",
	"queue peek":     "queue peek q",
	"render":         "render --dry-run; text render --stdout; text render --diff",
	"rollout list":   "rollout list /config/shop",
	"rollout status": "rollout status /config/shop",
	"rollout watch":  "rollout watch /config/shop --timeout 50ms",
	"status":         "status; text status -o wide; text status --check",
	"txn result":     "txn result t",
	"txn wait":       "txn wait t --timeout 50ms",
	"watch":          "watch / --recursive --once; watch /services/web --children --once",
	"zk acl":         "zk acl ZNODE",
	"zk export":      "zk export /",
	"zk get":         "zk get ZNODE; zk get ZNODE/pl4nted",
	"zk ls":          "zk ls ZNODE",
	"zk stat":        "zk stat ZNODE",
	"zk tree":        "zk tree /; zk tree / --data",
	"zk whoami":      "zk whoami /config ZNODE",
}

// hostileWrites are those of commands that change something, and name what they have met.
var hostileWrites = map[string]string{
	"config convert": "config convert /config/flat --yes", "config finish": "config finish /config/shop", "config freeze": "config freeze /config/shop --reason x --yes",
	"config gc": "config gc /config/shop --yes", "config publish": "config publish SITE /config/shop --yes --rollout=false",
	"config rollback": "config rollback /config/shop --yes --rollout=false", "config unfreeze": "config unfreeze /config/shop --yes", "config delete": "config delete /config/flat --reason x --yes",
	"fleet forget": "fleet forget a1 --yes", "members accept": "members accept web",
	"queue ack": "queue ack r-1", "queue return": "queue return r-1", "queue reserve": "queue reserve q --nonblock", "queue take": "queue take q --nonblock", "queue purge": "queue purge q --yes",
	"rollout abort": "rollout abort /config/shop -m x --yes", "rollout pause": "rollout pause /config/shop", "rollout resume": "rollout resume /config/shop",
	"rollout retry": "rollout retry /config/shop --timeout 50ms", "rollout undo": "rollout undo /config/shop --yes --timeout 100ms", "txn abort": "txn abort t", "txn coordinate": "txn coordinate t --timeout 50ms",
	"txn remove": "txn remove t", "zk acl set": "zk acl set ZNODE world:anyone:cdrwa --yes", "zk rm": "zk rm ZNODE --yes",
}

// notHostile are the commands without a line, and why.
var notHostile = map[string]string{
	"barrier close": "writes", "barrier open": "writes", "barrier enter": "waits for others", "barrier leave": "waits for others", "config edit": "an editor", "config import": "as config publish",
	"exec": "becomes another program", "config restore": "as config rollback, from the trash", "check": "an order", "dev": "has a server of its own", "fmt": "settings", "hooks log": "output of our own commands",
	"hooks run": "runs a command", "import": "settings", "leave": "ends the agent", "maint on": "an order", "maint off": "an order", "man": "no data", "options": "no data", "help": "no data", "queue put": "writes", "reload": "an order", "resign": "an order",
	"run": "is the agent", "test": "settings", "txn propose": "waits for others", "txn vote": "waits for others", "upgrade": "ends the agent", "validate": "settings", "version": "no data",
	"zk create": "writes", "zk set": "writes",
}

// leaves are the commands that do something, by their paths.
func leaves(c *cobra.Command) []string {
	path := strings.TrimPrefix(c.CommandPath(), "zkagent ")
	if path == "completion" || c.HasParent() && c.Hidden {
		return nil
	}
	var list []string
	if c.HasParent() && c.Annotations["parent"] == "" {
		list = append(list, path)
	}
	for _, child := range c.Commands() {
		list = append(list, leaves(child)...)
	}
	return list
}

// TestHostile_EveryCommand: each command has lines here, or a reason for none.
func TestHostile_EveryCommand(t *testing.T) {
	all := leaves(newRoot(newGlobals(nil, nil, nil)))
	for _, path := range all {
		found := 0
		for _, list := range []map[string]string{hostileReads, hostileWrites, notHostile} {
			if list[path] != "" {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s needs lines in hostileReads or hostileWrites, or a reason in notHostile", path)
		}
	}
	if n := len(hostileReads) + len(hostileWrites) + len(notHostile); n != len(all) {
		t.Errorf("%d entries for %d commands", n, len(all))
	}
}

// TestHostile_Outputs: random programs of somebody who may write every znode. The templates
// of the examples are rendered, and nginx, HAProxy, a shell and a JSON parser read what
// came out. Every command runs on a terminal, with its words and with -o json, and every
// page of the agent is read. No text of others stands where it means something.
func TestHostile_Outputs(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	t.Setenv("DIR", dir)
	t.Setenv("ZKAGENT_DEV_DIR", dir)
	t.Setenv("PORT", strings.TrimPrefix(freeAddress(t), "127.0.0.1:"))
	t.Setenv("NO_COLOR", "1")
	startExampleHAProxy(t, dir)
	testhelp.Seeds(t, time.Second, func(t *testing.T, seed uint64) {
		w := newHostileWorld(t, dir, seed)
		for range 1 + w.r.IntN(40) {
			w.strike()
		}
		w.settle()
		w.lookAtFiles()
		w.lookAtExamples()
		w.lookAtPages()
		w.lookAtStreams()
		w.lookAtCommands()
	})
}

// startExampleHAProxy starts the HAProxy of the examples.
func startExampleHAProxy(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("haproxy", "-db", "-f", "../../examples/haproxy/haproxy.cfg")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	soon(t, "the socket of HAProxy", func() bool { return exists(filepath.Join(dir, "haproxy.sock")) })
}

type hostileWorld struct {
	*testing.T

	r       *rand.Rand
	dir     string
	srv     *memzk.Server
	zk      string // host:port
	http    string
	words   []string        // what is written
	written map[string]bool // all texts, and keys of configs
}

func newHostileWorld(t *testing.T, base string, seed uint64) *hostileWorld {
	t.Helper()
	dir := filepath.Join(base, fmt.Sprint(seed))
	w := &hostileWorld{T: t, r: rand.New(rand.NewPCG(seed, 35)), dir: dir, http: freeAddress(t), words: hostilePlain, written: map[string]bool{"": true}}
	if w.r.IntN(3) == 0 {
		w.words = hostileWords
	}
	var s *session.Session
	w.srv, w.zk, s = inMemoryServer(t)
	t.Setenv("ZK", w.zk)
	t.Setenv("ZKAGENT_CONFIG", filepath.Join(dir, "zkagent.hcl"))
	w.must(os.MkdirAll(filepath.Join(dir, "site"), 0o700))
	w.must(os.Symlink(filepath.Join(base, "haproxy.sock"), filepath.Join(dir, "haproxy.sock")))
	w.must(os.WriteFile(filepath.Join(dir, "site", "banner"), []byte("x"), 0o600))
	w.must(os.WriteFile(filepath.Join(dir, "zkagent.hcl"), fmt.Appendf(nil, hostileSettings, dir, w.zk, w.http), 0o600))
	w.build(s)
	conf, err := settings.Load([]string{filepath.Join(dir, "zkagent.hcl")}, settings.Options{})
	w.must(err)
	a, err := agent.New(conf.Config)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		_ = w.srv.Delete(rolling.Root + "/rolled-halt") // the stop waits for a turn
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	w.settle() // A template that waits for its turn keeps the agent from being ready.
	w.propose(s)
	return w
}

func (w *hostileWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *hostileWorld) word() string { return w.words[w.r.IntN(len(w.words))] }

// record is a JSON object with hostile text in some fields.
func (w *hostileWorld) record(text string) []byte {
	var v any
	w.must(json.Unmarshal([]byte(text), &v))
	data, err := json.Marshal(w.spoil(v))
	w.must(err)
	return data
}

// spoil replaces some texts and keys.
func (w *hostileWorld) spoil(v any) any {
	switch v := v.(type) {
	case string:
		if w.r.IntN(4) == 0 {
			return w.word()
		}
	case []any:
		for i := range v {
			v[i] = w.spoil(v[i])
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			v[k] = w.spoil(v[k])
			if w.r.IntN(20) == 0 {
				v[w.word()] = v[k]
			}
		}
	}
	return v
}

// hostileRecords are records of each kind that something reads, before anything hostile
// happens to them. A path that ends with * is there several times.
var hostileRecords = map[string]string{
	"/services/web/*":      `{"host":"10.0.0.1","port":80,"name":"m","weight":3,"labels":{"zone":"a"}}`,
	"/services/api/*":      `{"host":"127.0.0.1","port":80,"name":"m","labels":{"zone":"a"},"available":false,"unavailable_reason":"draining"}`,
	"/services/other/*":    `{"host":"10.0.0.2","port":81}`,
	"/g/nerve/*":           `{"host":"h","port":1,"name":"a","weight":7,"haproxy_server_options":"check","labels":{"az":"a"}}`,
	"/g/serverset/member*": `{"serviceEndpoint":{"host":"h","port":8080},"additionalEndpoints":{"admin":{"host":"h","port":9990}},"status":"ALIVE","shard":0}`,
	"/g/curator/*":         `{"name":"web","id":"a","address":"h","port":90,"payload":{"id":"x","metadata":{"instance_status":"UP","zone":"a"}},"serviceType":"DYNAMIC"}`,
	"/g/kafka-broker/*":    `{"endpoints":["PLAINTEXT://h:9092"],"host":"h","port":9092,"version":4,"rack":"r"}`,
	"/g/text/*":            `"http://h:80/x"`,
	"/zkagent/agents/*":    `{"version":"1","since":"2026-01-02T03:04:05Z","health":"failing","maintenance":"m","configs":{"shop":{"known":2,"accepted":1,"path":"/config/shop"}},"files":{"json":"failed@1"},"services":{"web":{"state":"waiting"}},"leads":["e"],"holds":["web"],"faults":[{"code":"template-failed","subject":"json","text":"t"}]}`,
	"/zkagent/known/*":     `{"since":"2026-01-02T03:04:05Z","stopped":"2026-01-02T03:04:05Z","by":"x","reason":"y"}`,
	"/zkagent/txns/t":      `{"sites":["a","b"],"deadline":"2026-01-02T03:04:05Z"}`,
	"/zkagent/txns/t/*":    `"commit"`,
	"/zkagent/barriers/b":  `"closed"`,
}

// build creates what is hostile from the beginning.
func (w *hostileWorld) build(s *session.Session) {
	w.Helper()
	publish := func(path, layout string, n int) {
		keys := map[string][]byte{"banner": []byte(w.word()), "timeouts/read": []byte("5s"), "timeouts/connect": []byte("1s"), "n": fmt.Append(nil, n), ".schema.json": []byte(`{"type":"object","description":` + string(w.record(`"x"`)) + `}`)}
		for i := range w.r.IntN(4) {
			keys[fmt.Sprint("key", i)] = []byte(w.word())
		}
		_, err := fleet.Publish(w.Context(), s, fleet.PublishConfig{Path: path, Layout: layout, Keys: keys, Message: w.word(), Author: w.word(), Host: w.word(), Force: true})
		w.must(err)
	}
	publish("/config/shop", "", 1)
	publish("/config/shop", "", 2)
	publish("/config/flat", "flat", 1)
	w.create("/plain", "")
	for range w.r.IntN(6) {
		w.create("/plain/"+w.word(), w.word())
	}
	w.create("/end/n", "0")
	for _, path := range slices.Sorted(maps.Keys(hostileRecords)) {
		data := hostileRecords[path]
		if path, several := strings.CutSuffix(path, "*"); several {
			for i := range 3 {
				w.create(fmt.Sprintf("%s%d", path, i), string(w.record(data)))
			}
		} else {
			w.create(path, string(w.record(data)))
		}
	}
	halt, err := json.Marshal(rolling.Halt{Bundle: "rolled", Host: w.word(), Reason: w.word(), Time: time.Now()})
	w.must(err)
	w.create(rolling.Root+"/rolled-halt", string(halt))
	w.create(fleet.AgentPath("h1"), string(w.record(hostileRecords["/zkagent/agents/*"])))
	for i, end := range []string{"locks/l/_c_11111111-1111-1111-1111-11111111111%d-lock-000000000%[1]d", "elections/e/_c_11111111-1111-1111-1111-11111111111%d-latch-000000000%[1]d"} {
		w.create("/zkagent/"+fmt.Sprintf(end, i), w.word())
	}
	for range 3 {
		w.shown("queue", "put", "q", "--", w.word())
	}
}

// create creates a znode; a path that is none is no strike.
func (w *hostileWorld) create(path, data string) {
	w.written[strings.TrimPrefix(path, "/plain/")], w.written[data] = true, true
	_ = w.srv.Create(path, []byte(data))
}

// set sets a znode.
func (w *hostileWorld) set(path, data string) {
	w.written[data] = true
	_ = w.srv.Set(path, []byte(data))
}

// propose opens a rollout that bakes for long.
func (w *hostileWorld) propose(s *session.Session) {
	w.Helper()
	out := w.shown("config", "publish", filepath.Join(w.dir, "site"), "/config/shop", "--yes", "--force", "--rollout", "--detach", "--canary", "1", "--bake", "1h", "-m", strings.ReplaceAll(w.word(), "\x00", ""))
	names, err := fleet.Names(w.Context(), s, "/config/shop")
	if err != nil || len(names) == 0 {
		w.Fatalf("no rollout: %v\n%s%s", err, out.out, out.err)
	}
}

// strike does one hostile thing to a random znode.
func (w *hostileWorld) strike() {
	tree := w.srv.Tree()
	paths := slices.DeleteFunc(slices.Sorted(maps.Keys(tree)), func(p string) bool {
		return p == "/" || strings.HasPrefix(p, "/zookeeper") || strings.HasPrefix(p, "/end")
	})
	path := paths[w.r.IntN(len(paths))]
	data, v := w.word(), any(nil)
	switch {
	case w.r.IntN(3) == 0:
		w.create(path+"/"+w.word(), data)
	case w.r.IntN(4) > 0 && json.Unmarshal(tree[path].Data, &v) == nil:
		w.set(path, string(w.record(string(tree[path].Data))))
	case w.r.IntN(2) == 0:
		w.set(path, testhelp.HostileData[w.r.IntN(len(testhelp.HostileData))])
	default:
		w.set(path, data)
	}
}

// settle waits until the agent has seen it all.
func (w *hostileWorld) settle() {
	w.Helper()
	n := fmt.Sprint(w.r.Uint64())
	w.must(w.srv.Set("/end/n", []byte(n)))
	soon(w.T, "the last strike", func() bool {
		data, _ := os.ReadFile(filepath.Join(w.dir, "end"))
		return string(data) == n
	})
}

// terminals is what a command line has put out.
type terminals struct {
	out, err string
	code     int
}

// shown runs a command line in this process, on two terminals. YAML goes elsewhere: a
// terminal escapes what the format does not.
func (w *hostileWorld) shown(args ...string) terminals {
	w.Helper()
	var document bytes.Buffer
	var x terminals
	var ends []func() string
	stream := func() *os.File {
		master, slave := openPTY(w.T, 200)
		_, err := term.MakeRaw(int(slave.Fd()))
		w.must(err)
		text := make(chan string, 1)
		go func() {
			data, _ := io.ReadAll(master) // EIO when the other end is closed
			text <- string(data)
		}()
		ends = append(ends, func() string { _ = slave.Close(); defer master.Close(); return <-text })
		return slave
	}
	later := fmt.Sprint("/services/web/later", w.r.Uint64())
	change := time.AfterFunc(50*time.Millisecond, func() { _ = w.srv.Create(later, nil) }) // for "watch --once"
	defer change.Stop()
	out, talk := io.Writer(stream()), stream()
	if args[0] == "-o" && args[1] == "yaml" {
		out = &document
	}
	x.code = run(append([]string{"--zk", w.zk, "--timeout", "2s"}, args...), strings.NewReader(""), out, talk)
	x.out, x.err = ends[0]()+document.String(), ends[1]()
	return x
}

// lookAtCommands runs every command line in one of the forms of output.
func (w *hostileWorld) lookAtCommands() {
	w.Helper()
	znodes := slices.Sorted(maps.Keys(w.srv.Tree()))
	for _, lines := range []map[string]string{hostileReads, hostileWrites} {
		for _, path := range slices.Sorted(maps.Keys(lines)) {
			for line := range strings.SplitSeq(lines[path], "; ") {
				line, text := strings.CutPrefix(line, "text ")
				args := strings.Fields(line)
				names := strings.NewReplacer("SITE", filepath.Join(w.dir, "site"), "DIR", w.dir, "ZNODE", znodes[w.r.IntN(len(znodes))])
				for i := range args {
					args[i] = names.Replace(args[i])
				}
				if !text && w.r.IntN(2) == 0 {
					args = slices.Insert(args, 0, "-o", []string{"json", "ndjson", "yaml"}[w.r.IntN(3)])
				}
				w.lookAtCommand(args)
			}
		}
	}
}

// lookAtCommand runs one command line. Terminals get text, and machines get documents.
func (w *hostileWorld) lookAtCommand(args []string) {
	w.Helper()
	x := w.shown(args...)
	for _, text := range []string{x.out, x.err} {
		if args[0] == "-o" && args[1] == "yaml" {
			break
		}
		if bad := obeyed(strings.ReplaceAll(text, "\r\x1b[K", "")); bad != "" { // a bar is drawn again
			w.Errorf("zkagent %q hands %s to the terminal:\n%.2000q", args, bad, text)
		}
	}
	if args[0] != "-o" {
		return
	}
	if args[1] == "yaml" {
		var err error
		for part := range strings.SplitSeq(x.out, "\n---\n") {
			var v any
			err = cmp.Or(err, yaml.Unmarshal([]byte(part), &v))
		}
		if err != nil {
			w.Errorf("zkagent %q: %v:\n%.2000q", args, err, x.out)
		}
		return
	}
	for in := json.NewDecoder(strings.NewReader(x.out)); ; {
		var v map[string]any
		if err := in.Decode(&v); errors.Is(err, io.EOF) {
			return
		} else if err != nil || v["apiVersion"] != "v1" {
			w.Errorf("zkagent %q: %v, version %q:\n%.2000q", args, err, v["apiVersion"], x.out)
			return
		}
	}
}

// get reads a page of the agent.
func (w *hostileWorld) get(path string) (*http.Response, string) {
	w.Helper()
	resp, err := http.Get("http://" + w.http + path)
	w.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	w.must(err)
	return resp, string(body)
}

var (
	pageLink   = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	metricLine = regexp.MustCompile(`^(#.*|[a-z_]+(\{([a-z_]+="([^"\\]|\\[n"\\])*",?)*\})? [-+0-9.eEInfNa]+)$`)
)

// lookAtPages reads the page with all that it leads to, and what machines ask for.
func (w *hostileWorld) lookAtPages() {
	w.Helper()
	todo := []string{"/", "/status", "/hooks", "/members", "/fleet", "/events", "/metrics", "/healthz", "/readyz", "/v1/groups", "/v1/groups/all", "/v1/groups/all/web", "/v1/groups/all/api", "/sd/prometheus"}
	seen := map[string]bool{}
	for len(todo) > 0 && len(seen) < 60 {
		path := todo[0]
		if todo = todo[1:]; seen[path] {
			continue
		}
		seen[path] = true
		resp, body := w.get(path) //nolint:bodyclose // get has closed it
		if bad := obeyed(body); bad != "" {
			w.Errorf("%s has %s:\n%.2000q", path, bad, body)
		}
		switch kind := resp.Header.Get("Content-Type"); {
		case strings.HasPrefix(kind, "text/html"):
			if strings.Contains(body, "<pl4nted") || strings.Contains(body, `onmouseover="`) {
				w.Errorf("%s has elements of others:\n%s", path, body)
			}
			for _, m := range pageLink.FindAllStringSubmatch(body, -1) {
				if link, err := resp.Request.URL.Parse(html.UnescapeString(m[1])); err != nil || link.Host != w.http {
					w.Errorf("%s leads to %q", path, m[1])
				} else if link.Path != "/live" {
					todo = append(todo, link.RequestURI())
				}
			}
		case kind == "application/json":
			if !json.Valid([]byte(body)) {
				w.Errorf("%s: no JSON:\n%.2000q", path, body)
			}
		case path == "/metrics":
			for line := range strings.SplitSeq(strings.TrimSpace(body), "\n") {
				if !metricLine.MatchString(line) {
					w.Errorf("%s: %q", path, line)
				}
			}
		}
	}
}

// streamed is a line of a stream of events: its data are JSON on one line.
var streamed = regexp.MustCompile(`^(|retry: [0-9]+|: alive|id: [a-z0-9-]+|data: (changed|\{.*\}))$`)

// lookAtStreams reads what the streams of the page say at once.
func (w *hostileWorld) lookAtStreams() {
	w.Helper()
	for _, path := range []string{"/live", "/events?follow=1"} {
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.http+path, http.NoBody)
		w.must(err)
		resp, err := http.DefaultClient.Do(req)
		w.must(err)
		time.AfterFunc(200*time.Millisecond, cancel)
		body, _ := io.ReadAll(resp.Body) // until it is cut off
		_ = resp.Body.Close()
		whole := string(body)[:strings.LastIndexByte(string(body), '\n')+1]
		for line := range strings.SplitSeq(whole, "\n") {
			data, isData := strings.CutPrefix(line, "data: {")
			if !streamed.MatchString(line) || obeyed(line) != "" || isData && !json.Valid([]byte("{"+data)) {
				w.Errorf("%s: %.2000q", path, line)
			}
		}
		if len(body) == 0 {
			w.Errorf("%s says nothing", path)
		}
	}
}

// read is a file that the agent has rendered; "": it was never possible.
func (w *hostileWorld) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(w.dir, name))
	return string(data)
}

// lookAtFiles gives what the agent has rendered to those who read it.
func (w *hostileWorld) lookAtFiles() {
	w.Helper()
	for line := range strings.Lines(w.read("all.json")) {
		if !json.Valid([]byte(line)) {
			w.Errorf("no JSON: %.2000q", line)
		}
	}
	if text := w.read("map.conf"); text != "" {
		w.lookAtNginx(text)
	}
	if text := w.read("haproxy.cfg"); text != "" {
		for line := range strings.Lines(text) {
			if words := strings.Fields(line); !slices.Contains([]string{"defaults", "mode", "timeout", "listen", "bind", "http-response"}, words[0]) {
				w.Errorf("a line for HAProxy: %q", line)
			}
		}
		if out, err := exec.Command("haproxy", "-c", "-f", filepath.Join(w.dir, "haproxy.cfg")).CombinedOutput(); err != nil {
			w.Errorf("haproxy -c: %v\n%s\n%s", err, out, text)
		}
	}
	if file := filepath.Join(w.dir, "words.sh"); w.read("words.sh") != "" {
		out, err := exec.Command("sh", "-c", `. "$0"; [ $# = 0 ] || printf '%s\0' "$@"`, file).CombinedOutput()
		if err != nil {
			w.Errorf("sh: %v\n%s", err, out)
		}
		for word := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if !w.written[word] {
				w.Errorf("sh reads a word that nobody has written: %q", word)
			}
		}
	}
}

// lookAtExamples renders the templates of the examples, which are for nginx.
func (w *hostileWorld) lookAtExamples() {
	w.Helper()
	for _, example := range []string{"nginx", "quickstart"} {
		var out, talk bytes.Buffer
		switch code := run([]string{"render", "-c", "../../examples/" + example, "--zk", w.zk, "--timeout", "2s", "--stdout"}, strings.NewReader(""), &out, &talk); {
		case code == 0:
			w.lookAtNginx(out.String())
		case code != exitUnavailable && !strings.Contains(talk.String(), "upstreams.conf.tmpl:"): // the template refuses the text
			w.Errorf("examples/%s: exit code %d: %s", example, code, &talk)
		}
	}
}

// nginxDirectives are those that the templates write, with the number of their words.
var nginxDirectives = map[string]string{
	"upstream": "2", "server": "2 3 5", "proxy_connect_timeout": "2", "proxy_read_timeout": "2", "add_header": "3", "map": "3",
}

// nginxRefuses is why nginx may refuse a file of the templates: an address that is no address, and
// a time that is none.
var nginxRefuses = regexp.MustCompile(`host not found in upstream|no servers are inside upstream|directive invalid value|invalid host in upstream`)

// lookAtNginx reads a file as nginx does, and with nginx.
func (w *hostileWorld) lookAtNginx(text string) {
	w.Helper()
	inside := ""
	for _, s := range nginxStatements(text) {
		if slices.Equal(s, []string{"}"}) {
			inside = ""
			continue
		}
		words, end := s[:len(s)-1], s[len(s)-1]
		want, block := nginxDirectives[s[0]], ""
		switch {
		case inside == "map":
			want = "2"
		case (inside == "upstream") != (s[0] == "server"):
			want = ""
		case s[0] == "upstream" || s[0] == "map":
			block = s[0]
		}
		if (block != "") != (end == "{") || !slices.Contains(strings.Fields(want), fmt.Sprint(len(words))) {
			w.Errorf("nginx reads %q in %q in\n%s", s, inside, text)
		}
		inside = cmp.Or(block, inside)
	}
	conf := fmt.Sprintf("pid %[1]s/pid; error_log stderr; events { } http { access_log off; client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3; uwsgi_temp_path %[1]s/t4; "+
		"scgi_temp_path %[1]s/t5; map_hash_bucket_size 16384; map_hash_max_size 65536;\n%[2]s\n}\n", w.dir, text)
	file := filepath.Join(w.dir, "nginx.conf")
	w.must(os.WriteFile(file, []byte(conf), 0o600))
	if out, err := exec.Command("nginx", "-t", "-q", "-e", "stderr", "-p", w.dir, "-c", file).CombinedOutput(); err != nil && !nginxRefuses.Match(out) {
		w.Errorf("nginx -t: %v\n%s\n%s", err, out, text)
	}
}

// nginxStatements are the statements of a file of nginx: their words, and what ends them.
func nginxStatements(text string) [][]string {
	var list [][]string
	var words []string
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			i++
		case c == '#':
			_, rest, _ := strings.Cut(text[i:], "\n")
			i = len(text) - len(rest)
		case strings.IndexByte(";{}", c) >= 0:
			list, words = append(list, append(words, string(c))), nil
			i++
		default:
			quote := strings.IndexByte(`"'`, c) >= 0
			from := i
			for i++; i < len(text) && (quote && text[i] != c || !quote && strings.IndexByte(" \t\r\n;{", text[i]) < 0); i++ {
				if text[i] == '\\' {
					i++
				}
			}
			if quote {
				i++
			}
			words = append(words, text[from:min(i, len(text))])
		}
	}
	return append(list, append(words, ""))[:len(list)+min(1, len(words))]
}
