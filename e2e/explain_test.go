package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// plannedHost is the settings of one of the hosts that a dry run asks. They differ by
// their zone, and by the limit that one of them has for itself.
func plannedHost(zk, zone string) string {
	return fmt.Sprintf(`
zookeeper {
  servers         = [%q]
  session_timeout = "15s"
}
config "site" { path = %q }
template "words" {
  destination = "DIR/words"
  contents    = "zone %s\nword {{ key \"site/word\" }}\n"
  check { command = ["sh", "-c", "! grep -q 'zone c' $1 || ! grep -q rude $1 || { echo zone c takes no rude word; exit 1; }", "sh", staged] }
  reload { command = ["sh", "-c", "exit 0", "words"] }
}
template "limits" {
  destination = "DIR/limits"
  contents    = "limit {{ keyOrDefault (print \"site/limits/\" agent.ID) (key \"site/limit\") }}\n"
}
`, zk, site, zone)
}

// requestsOf returns how many requests of each kind an agent has made.
func (a *agentProcess) requestsOf(t *testing.T) map[string]int {
	t.Helper()
	client := web.NewClient(a.path("sock"))
	text, err := client.Raw(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		if m := requestLine.FindStringSubmatch(lines.Text()); m != nil {
			counts[m[1]], _ = strconv.Atoi(m[2])
		}
	}
	if len(counts) == 0 {
		t.Fatalf("no request is counted:\n%s", text)
	}
	return counts
}

var requestLine = regexp.MustCompile(`^zkagent_zk_request_duration_seconds_count\{op="(\w+)"\} (\d+)$`)

// Three agents with different data, of which one refuses the version: the table of
// the dry run, and then a rollout that ends as the table says.
func TestPlanFleet(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	keys := map[string]string{"word": "one", "limit": "10", "limits/web-0": "99", "unused": "1"}
	publish(t, zk, site, keys)
	agents := map[string]*agentProcess{}
	for i, zone := range []string{"a", "b", "c"} {
		id := fmt.Sprintf("web-%d", i)
		agents[id] = startAgent(t, id, plannedHost(zk, zone))
	}
	for _, a := range agents {
		fileContains(t, a.path("words"), "word one")
		fileContains(t, a.path("limits"), "limit ")
	}
	settled := func(version string) {
		t.Helper()
		eventually(t, "three hosts that use "+version, func() bool {
			out, _ := command(t, nil, "fleet", site, "--zk", zk)
			return subscribers(out) == 3 && strings.Count(out, version+" ") == 3
		})
	}
	settled("v1")
	plan := func(change map[string]string, more ...string) (string, int) {
		t.Helper()
		next := maps.Clone(keys)
		maps.Copy(next, change)
		dir := filepath.Join(t.TempDir(), "site")
		for name, value := range next {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			writeKey(t, dir, name, value)
		}
		out, code := command(t, nil, append([]string{"config", "plan", dir, site, "--zk", zk, "--fleet", "--vote-timeout", "80s"}, more...)...)
		out = strings.ReplaceAll(out, dir, "SITE")
		for id, a := range agents {
			out = strings.ReplaceAll(out, a.dir, "/"+id)
		}
		return regexp.MustCompile(` {2,}`).ReplaceAllString(out, "  "), code
	}

	// A key that no host reads changes no host.
	out, code := plan(map[string]string{"unused": "2"}, "--exit-code")
	if code != 0 || !strings.Contains(out, "Asked 3 hosts: 0 would change, 3 would not, 0 refuse, 0 do not answer") {
		t.Errorf("exit %d\n%s", code, out)
	}

	// One host refuses, one has its own limit.
	rude := map[string]string{"word": "rude", "limit": "20"}
	out, code = plan(rude, "--exit-code")
	_, table, _ := strings.Cut(out, "Asked ")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	slices.Sort(rows[2:min(5, len(rows))]) // by path, and here the paths are random
	table = strings.Join(rows, "\n")
	const golden = `3 hosts: 2 would change, 0 would not, 1 refuse, 0 do not answer
FILE  LINES  HOSTS  RELOAD  WHERE
/web-0/words  +1 -1  1  ["sh", "-c", "exit 0", "words"]  web-0
/web-1/limits  +1 -1  1  -  web-1
/web-1/words  +1 -1  1  ["sh", "-c", "exit 0", "words"]  web-1
web-2 refuses: words: check failed: sh: exit status 1: zone c takes no rude word
error: 1 of 3 hosts refused the version or did not answer`
	if code != 70 || table != golden {
		t.Errorf("exit %d, want 70 and\n%s\ngot\n%s", code, golden, out)
	}
	for id, a := range agents {
		unchanged(t, a.path("words"), "zone "+map[string]string{"web-0": "a", "web-1": "b", "web-2": "c"}[id]+"\nword one\n")
	}
	out, code = rollOutKeys(t, zk, keys, rude)
	if code != 1 || !strings.Contains(out, "zone c takes no rude word") {
		t.Errorf("exit %d, want 1 and the words of the table:\n%s", code, out)
	}
	for _, a := range agents {
		fileContains(t, a.path("words"), "word one")
	}

	// All hosts accept. Each file ends with the content that the table announced.
	kind := map[string]string{"word": "two", "limit": "20"}
	if out, code := plan(kind, "--exit-code"); code != 1 || !strings.Contains(out, "Asked 3 hosts: 3 would change, 0 would not, 0 refuse, 0 do not answer") {
		t.Errorf("exit %d\n%s", code, out)
	}
	out, code = plan(kind, "-o", "json", "--quiet")
	var got struct {
		Plan struct {
			Fleet struct {
				Changes []struct {
					Path, Digest string
					Hosts        []string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || len(got.Plan.Fleet.Changes) != 5 {
		t.Fatalf("exit %d, %v\n%s", code, err, out)
	}
	out, code = rollOutKeys(t, zk, keys, kind)
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	for _, c := range got.Plan.Fleet.Changes {
		a := agents[c.Hosts[0]]
		data, err := os.ReadFile(strings.Replace(c.Path, "/"+c.Hosts[0], a.dir, 1))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); !strings.HasPrefix(hex.EncodeToString(sum[:]), strings.TrimPrefix(c.Digest, "sha256:")) || len(c.Digest) < 8 {
			t.Errorf("%s on %v has the digest %x, the table said %s", c.Path, c.Hosts, sum, c.Digest)
		}
	}
	unchanged(t, agents["web-0"].path("limits"), "limit 99\n")
	for _, call := range [][]string{{"rollout", "list"}, {"config", "history"}, {"zk", "ls"}} {
		path := site
		if call[0] == "zk" {
			path += "/rollouts"
		}
		out := must(t, append(call, path, "--zk", zk)...)
		if strings.Contains(out, "dry") || call[1] == "history" && strings.Count(out, "\n") != 1+3 {
			t.Errorf("%v: dry runs leave nothing behind:\n%s", call, out)
		}
	}
}

// rollOutKeys publishes keys with a change by a rollout.
func rollOutKeys(t *testing.T, zk string, keys, change map[string]string) (string, int) {
	t.Helper()
	dir := t.TempDir()
	next := maps.Clone(keys)
	maps.Copy(next, change)
	for name, value := range next {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		writeKey(t, dir, name, value)
	}
	return command(t, nil, append([]string{"config", "publish", dir, site, "--zk", zk}, slowly()...)...)
}

// blamedFile is a report of zkagent blame -o json.
type blamedFile struct {
	Path  string
	Lines []struct {
		Line     int
		Text     string
		From, To int
		Parts    []struct {
			From, To int
			Line     int `json:"template_line"`
			Literal  bool
			Values   []int
		}
		Values []int
	}
	Values []struct {
		Text, Author, Message string
		Version               int64
	}
}

// covers fails unless every byte of the file has a source, and every source of a part
// that is not literal text a name.
func (f *blamedFile) covers(t *testing.T, size int) {
	t.Helper()
	at := 0
	for _, l := range f.Lines {
		if l.From != at {
			t.Errorf("line %d begins at %d, want %d", l.Line, l.From, at)
		}
		for _, p := range l.Parts {
			if p.From != at || p.To <= p.From || p.Line < 1 || !p.Literal && len(p.Values) == 0 {
				t.Errorf("line %d: part %+v, at %d", l.Line, p, at)
			}
			at = p.To
		}
		if l.To != at {
			t.Errorf("line %d ends at %d, its parts at %d", l.Line, l.To, at)
		}
	}
	if at != size {
		t.Errorf("%d of %d bytes have a source", at, size)
	}
}

// The nginx of the examples answers who changed a timeout, why a server is in its
// file, and why another one is not.
func TestBlame_Nginx(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	s := dialZK(t, zk)
	shop := func(read, author, why string) {
		t.Helper()
		if _, err := fleet.Publish(t.Context(), s, fleet.PublishConfig{
			Path: "/config/shop", Author: author, Message: why,
			Keys: map[string][]byte{"timeouts/connect": []byte("2s"), "timeouts/read": []byte(read)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	shop("10s", "ann", "first of all")
	putMember(t, s, "/services/api", "m7", "10.0.0.7", 8080, 1)
	putMember(t, s, "/services/api", "m8", "10.0.0.8", 8080, 3)
	putMember(t, s, "/services/api", "m9", "10.0.0.9", 8080, 1)
	web, nginx := startWeb(t, zk)
	settings, err := os.ReadFile(web.path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	web.write(t, "agent.hcl", strings.Replace(string(settings), `"127.0.0.0/8"`, `"10.0.0.6/31", "10.0.0.8/32"`, 1))
	nginx.start(t)
	web.start(t)
	file := web.path("conf.d/upstreams.conf")
	fileContains(t, file, "10.0.0.7:8080", `proxy_read_timeout "10s"`)
	shop("20s", "bob", "the backends are slow")
	content := fileContains(t, file, "10.0.0.7:8080", `proxy_read_timeout "20s"`)
	lineOf := func(text string) string {
		for i, line := range strings.Split(content, "\n") {
			if strings.Contains(line, text) {
				return strconv.Itoa(i + 1)
			}
		}
		t.Fatalf("no line has %q:\n%s", text, content)
		return ""
	}
	blame := func(more ...string) string {
		t.Helper()
		out, code := web.run(t, append([]string{"blame", file}, more...)...)
		if code != 0 {
			t.Fatalf("blame %v: exit %d\n%s", more, code, out)
		}
		return out
	}
	says := func(out, pattern string) {
		t.Helper()
		if !regexp.MustCompile("(?m)" + pattern).MatchString(out) {
			t.Errorf("no line is like %q:\n%s", pattern, out)
		}
	}
	// Who changed proxy_read_timeout? And who the other one?
	out := blame("-L", lineOf("proxy_read_timeout"))
	says(out, `^ +\d+ :9 +proxy_read_timeout "20s";$`)
	says(out, `^ += config\.shop/timeouts/read: version 2, by bob on \S+, on \S+ \(.* ago\), "the backends are slow"$`)
	says(blame("-L", lineOf("proxy_connect_timeout")), `= config\.shop/timeouts/connect: version 1, by ann on \S+, on .*"first of all"$`)
	// It costs the list of the versions, their records, and the buckets of the keys. The
	// agent itself still writes now and then.
	want := map[string]int{"getChildren2": 1, "multiRead": 2}
	cost := map[string]int{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last report cost %v", cost)
		}
	})
	eventually(t, "a report to cost no more than the kept versions", func() bool {
		before := web.requestsOf(t)
		blame()
		cost = web.requestsOf(t)
		for op, n := range before {
			if cost[op] -= n; cost[op] == 0 || op == "ping" {
				delete(cost, op)
			}
		}
		return maps.Equal(cost, want)
	})
	// Why is 10.0.0.7 in here?
	out = blame("-L", lineOf("10.0.0.7"))
	says(out, `^ += group\.api member m7: 10\.0\.0\.7:8080, of m7, since \S+ \(.* ago\)$`)
	says(out, `^ +\? :3 range members "api": group\.api: 2 members$`)
	// And why is 10.0.0.9 not? Its line would be literal text for a part only.
	out = blame("--missing", "10.0.0.9")
	says(out, `^"10\.0\.0\.9" is not in .*upstreams\.conf$`)
	says(out, `^  group\.api znode m9: is not a member: address 10\.0\.0\.9 is not within the allowed subnets$`)
	says(blame("--missing", "10.0.0.7"), `^"10\.0\.0\.7" is in .*: line `+lineOf("10.0.0.7")+`$`)
	says(blame("--missing", "10.0.0.77"), `^  nothing that the template reads has it:$`)

	// Every byte of the file has a source, and the sources are of the file in place.
	var list struct{ Files []blamedFile }
	out = blame("-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Files) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	list.Files[0].covers(t, len(content))
	for _, l := range list.Files[0].Lines {
		if content[l.From:l.To] != l.Text+"\n" {
			t.Errorf("line %d is %q, the file has %q", l.Line, l.Text, content[l.From:l.To])
		}
	}

	// Another version, the data that the agent keeps, and other data.
	says(blame("--version", "1", "-L", lineOf("proxy_read_timeout")), `proxy_read_timeout "10s";\n +=.*version 1, by ann`)
	eventually(t, "the data that are kept to have the version", func() bool {
		out, code := web.run(t, "blame", file, "--last-good")
		return code == 0 && strings.Contains(out, `proxy_read_timeout "20s"`) && strings.Contains(out, "10.0.0.7:8080")
	})
	web.write(t, "data.yaml", "configs: {shop: {timeouts: {read: 99s}}}\ngroups: {api: {members: [{id: a, host: 10.0.0.9, port: 80}]}}\n")
	out = blame("--data", web.path("data.yaml"))
	says(out, `proxy_read_timeout "99s";\n += config\.shop/timeouts/read$`)
	says(out, `= group\.api member a: 10\.0\.0\.9:80`)
}
