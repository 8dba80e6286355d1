package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// hostile is a name that breaks pages which take names for markup.
const hostile = `web-00<b>"'&<script>alert(1)</script>`

// ephemeral makes an ephemeral znode of the test's own session.
func (b *bed) ephemeral(path, data string) {
	b.t.Helper()
	if err := b.s.CreateParents(b.t.Context(), path); err != nil {
		b.t.Fatal(err)
	}
	b.sure(func() error {
		_, _, err := b.s.Create(b.t.Context(), path, []byte(data), session.Ephemeral)
		return err
	})
}

// pageBed is an agent with the page, a group with a hostile member, and a
// template whose check fails.
func pageBed(t *testing.T) (*bed, *started) {
	t.Helper()
	b := newBed(t)
	everybody(t, b.dir)
	b.tree(map[string]string{"port": "80"})
	b.ephemeral("/services/web/m1", `{"host":"10.0.0.1","port":80,"labels":{"zone":"a"}}`)
	b.ephemeral("/services/web/"+strings.ReplaceAll(hostile, "/", "_"), `{"host":"10.0.0.2;}","port":80}`)
	b.ephemeral(fleet.AgentPath("garbage"), "\x00\xff{not json")
	b.ephemeral(fleet.AgentPath("future"), `{"version":"99.1","health":"ok","files":{"web":"ok@7"},"unknown":{"a":[1]},"since":"2026-01-02T03:04:05Z"}`)
	b.ephemeral(fleet.AgentPath("wrong"), `{"version":17,"files":"x"}`)
	b.ephemeral(fleet.AgentPath("broken"), `{"version":"1","health":"failing","files":{"`+jsonText(hostile)+`":"failed"},"faults":[{"code":"template-failed","subject":"nginx","stage":"check","exit":3}]}`)
	c := b.config()
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0", ShowOutput: true}
	c.Groups = []registry.GroupConfig{{Name: "web", Path: "/services/web"}}
	broken := b.file("broken.conf", "port {{ key \"web/port\" }};\n# "+hostile+"\n")
	broken.Check = &apply.CheckConfig{Command: script("echo broken '%s' >&2; exit 1", "<i>here</i>")}
	private := b.file("private.conf", "password {{ key \"web/port\" }}hunter2\n")
	private.Templates[0].Mode = 0o600
	private.Check = broken.Check
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`), broken, private}
	a := b.start(c)
	a.ready()
	a.condition(condition.TemplateFailed, "broken.conf", true)
	a.condition(condition.TemplateFailed, "private.conf", true)
	return b, a
}

func jsonText(s string) string {
	data, _ := json.Marshal(s)
	return strings.Trim(string(data), `"`)
}

func TestPage_EverySection(t *testing.T) {
	_, a := pageBed(t)
	want := map[string][]string{
		"/":             {"garbage", "not one that this version understands", "99.1", "check failed with exit status 3", "the worst first", "open conditions"},
		"/services":     {"10.0.0.1:80", "&lt;script&gt;", "rejected"},
		"/templates":    {"&#43;port 80;", "&lt;i&gt;here&lt;/i&gt;", "the page shows only files that everybody may read"},
		"/rollouts":     {"No rollouts"},
		"/locks":        {"takes part in no election"},
		"/timeline":     {"condition-opened", "applied"},
		"/hosts/broken": {"template-failed nginx: check failed with exit status 3", "stay on the host"},
		"/agent":        {"connected", "This agent"},
		"/app.js":       {"EventSource"},
		"/app.css":      {"light-dark"},
	}
	for path, texts := range want {
		code, body, h := httpGet(t, a, http.MethodGet, path, nil)
		if code != http.StatusOK || h.Get("Content-Security-Policy") == "" {
			t.Errorf("%s: got %d, %v", path, code, h)
		}
		for _, text := range texts {
			if !strings.Contains(body, text) {
				t.Errorf("%s: %q is missing in:\n%s", path, text, body)
			}
		}
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "hunter2") || strings.Contains(body, "<i>here") {
			t.Errorf("%s shows what it must not:\n%s", path, body)
		}
	}
}

func TestPage_FailedRenderLeavesNoTrace(t *testing.T) {
	b, a := pageBed(t)
	a.recorded("ready") // the last one of the start
	before, _ := a.events.Since(0)
	if _, err := a.Preview(t.Context(), "broken.conf"); err != nil {
		t.Error(err)
	}
	if _, err := a.Preview(t.Context(), "none"); err == nil {
		t.Error("a template that does not exist was previewed")
	}
	after, _ := a.events.Since(before[len(before)-1].Seq)
	if exists(b.path("broken.conf")) || len(after) != 0 {
		t.Errorf("the preview left a file or events: %v", after)
	}
}

// TestPage_DiskHangs: a preview that waits for a disk holds up no other page for longer than
// that page waits.
func TestPage_DiskHangs(t *testing.T) {
	_, a := pageBed(t)
	a.comparing <- struct{}{} // as a read that does not end
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Preview(ctx, "broken.conf"); !errors.Is(err, errComparing) {
		t.Errorf("got %v", err)
	}
	<-a.comparing
	if _, err := a.Preview(t.Context(), "broken.conf"); err != nil {
		t.Error(err)
	}
}

func TestPage_Locks(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	b.ephemeral("/zkagent/locks/backup/_c_2-lock-0000000008", "second")
	b.ephemeral("/zkagent/locks/backup/_c_1-lock-0000000007", "first") // the number is the order
	b.ephemeral("/zkagent/rolling/web/leases/_c_3-lease-0000000000", "third")
	c := b.config()
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	c.Elections = []election.Config{{Name: "job", Path: "/elections/job"}}
	a := b.start(c)
	a.ready()
	eventually(t, "the agent to lead", func() bool { return a.hooks.Term("job") != 0 })
	code, text, _ := httpGet(t, a, http.MethodGet, "/locks", nil)
	for _, want := range []string{
		`job <span class="mut">/elections/job</span></th><td>election</td><td>a1<`,
		`backup <span class="mut">/zkagent/locks/backup</span></th><td>lock</td><td>first<`, "second <span",
		`web <span class="mut">/zkagent/rolling/web</span></th><td>rolling reload (permits)</td><td>third<`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%d: %q is missing in:\n%s", code, want, text)
		}
	}
}

// everybody opens a test's directory to others.
func everybody(t *testing.T, dir string) string {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCompareFile(t *testing.T) {
	closed := t.TempDir()
	if d, _ := compareFile(apply.Output{Destination: filepath.Join(closed, "new"), Config: &apply.FileConfig{}, Data: []byte("secret")}); !strings.Contains(d.Note, "everybody may read") || d.Lines != nil {
		t.Errorf("a file in a closed directory is shown: %+v", d)
	}
	dir := everybody(t, t.TempDir())
	out := func(name, data string) apply.Output {
		return apply.Output{Config: &apply.FileConfig{}, Destination: filepath.Join(dir, name), Data: []byte(data)}
	}
	write := func(name, data string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("open", "a\nb\n", 0o644)
	write("private", "secret\n", 0o640)
	write("binary", "\xff\n", 0o644)
	write("same", "a\n", 0o600)
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ name, data, line, note string }{
		{"open", "a\nc\n", "+c", ""},
		{"new", "a\n", "+a", ""},
		{"private", "other\n", "", "everybody may read"},
		{"binary", "a\n", "", "not text"},
		{"dir", "a\n", "", "not a regular file but a directory"},
		{"open", strings.Repeat("x\n", diffMaxFile), "", "too large"},
	} {
		d, differs := compareFile(out(x.name, x.data))
		text := strings.Join(d.Lines, "\n")
		if !differs || !strings.Contains(text, x.line) || x.line == "" && text != "" || !strings.Contains(d.Note, x.note) {
			t.Errorf("%s: got %+v", x.name, d)
		}
	}
	if _, differs := compareFile(out("same", "a\n")); differs {
		t.Error("a file that is the same was said to differ")
	}
}
