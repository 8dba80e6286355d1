package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// `zkagent test --watch` runs the tests again when the template, the settings, or
// a new test file changes the result, and goes on after a file that is wrong.
func TestTemplateTests_Watch(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "watch", "")
	a.write(t, "s/zkagent.hcl", "template \"a\" {\n  source = \"a.tmpl\"\n  destination = \"/etc/a\"\n}\n")
	a.write(t, "s/a.tmpl", "old\n")
	a.write(t, "s/a_test.yaml", "settings: zkagent.hcl\ntests: [{name: one, template: a, want: \"new\\n\"}]\n")
	d := startTalking(t, binary, nil, "test", "--watch", filepath.Join(a.dir, "s"))
	d.says(t, "1 of 1 test failed")
	a.write(t, "s/a.tmpl", "new\n")
	d.says(t, "1 test passed")
	a.write(t, "s/zkagent.hcl", "template \"a\" {\n  nonsense = 1\n}\n")
	d.says(t, "nonsense")
	a.write(t, "s/zkagent.hcl", "template \"a\" {\n  source = \"a.tmpl\"\n  destination = \"/etc/a\"\n}\n")
	a.write(t, "s/b_test.yaml", "tests: [{name: two, contents: x, want: x}]\n")
	d.says(t, "2 tests passed")
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := d.ends(t); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

// A first file waits for a key and names it. A vote on a version without the key
// aborts and names it, and such a version keeps the last good file.
func TestMissingKey(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, "/config/web", map[string]string{"other": "x"})
	a := startAgent(t, "host-1", fmt.Sprintf(`
zookeeper { servers = [%q] }
config "web" { path = "/config/web" }
template "out" {
  destination = "DIR/out"
  contents    = "{{ key \"web/word\" }}"
}
`, zk))
	a.statusHolds(t, "key-missing", "word")
	if _, err := os.Stat(a.path("out")); err == nil {
		t.Error("a file was written without the key")
	}
	publish(t, zk, "/config/web", map[string]string{"word": "one"})
	fileContains(t, a.path("out"), "one")

	without := t.TempDir()
	if err := os.WriteFile(filepath.Join(without, "other"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"config", "publish", without, "/config/web", "--zk", zk, "--yes"}
	out, code := command(t, nil, append(args, "--rollout")...)
	if code == 0 || !strings.Contains(out, `no key "word"`) {
		t.Errorf("the vote: exit %d\n%s", code, out)
	}
	must(t, args...) // to all hosts at once, without a vote.
	a.statusHolds(t, "key-missing", "kept")
	fileContains(t, a.path("out"), "one")
}
