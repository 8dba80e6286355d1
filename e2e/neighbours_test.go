package e2e

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// addedField is what each record of the next version has and this version does not
// know. addedType is its type.
const (
	addedField = "from_next_version"
	addedType  = `package %s

type addedField struct{}

func (addedField) MarshalJSON() ([]byte, error) { return []byte("{\"since\":\"0.2.0\"}"), nil }

func (*addedField) UnmarshalJSON([]byte) error { return nil }
`
)

// TestUpgrade_NeighboursInOneFleet upgrades agents one by one under a rollout, from
// 0.1.0 to a version whose records have more fields. Both versions read each other's
// records, and both publish.
func TestUpgrade_NeighboursInOneFleet(t *testing.T) {
	testhelp.OnlyAll(t, "it builds two versions of the program")
	t.Parallel()
	former, next := buildVersion(t, "0.1.0"), buildVersion(t, "0.2.0", "-overlay", nextRecords(t))
	zk := zookeeper(t)
	s := &sites{t: t, zk: zk, log: &eventLog{}, gate: newGate(), agents: map[string]*agentProcess{}}
	by := func(program string, args ...string) {
		t.Helper()
		if out, code := commandOf(t, program, nil, append(args, "--zk", zk)...); code != 0 {
			t.Fatalf("%s: exit %d:\n%s", strings.Join(args, " "), code, out)
		}
	}
	publish := func(program, word string, flags ...string) {
		t.Helper()
		by(program, append(s.publishArgs(t, word)[:4], append([]string{"-m", "to " + word}, flags...)...)...)
	}
	publish(former, "one")
	hosts := []string{"web-02", "web-03", slowHost}
	for _, id := range hosts {
		s.join(t, id)
		s.agents[id].kill()
		s.agents[id].program = former
		s.agents[id].start(t)
	}
	s.allUse(t, "one")
	s.subscribed(t, len(hosts))
	upgrade := func(id string) {
		t.Helper()
		s.agents[id].stop(t)
		s.agents[id].program = next
		s.agents[id].start(t)
		eventually(t, "both versions to say that "+id+" has the next one", func() bool {
			out, _ := commandOf(t, former, nil, "fleet", "--zk", zk)
			same, _ := commandOf(t, next, nil, "fleet", "--zk", zk)
			return versionOf(out, id) == "0.2.0" && versionOf(same, id) == "0.2.0"
		})
	}

	// The canary, of 0.1.0, stands in the middle of its reload. Then no further host starts.
	publish(former, "slow", slowly("--parallel", "1", "--canary", slowHost, "--detach")...)
	eventually(t, slowHost+" to reload", func() bool { return len(s.log.of("slow")) > 0 })
	upgrade(hosts[0])
	by(former, "rollout", "pause", site)
	s.gate.open()
	upgrade(hosts[1])
	by(next, "rollout", "resume", site)
	by(former, "rollout", "watch", site)
	s.allUse(t, "slow")
	s.servicesAtMost(t, "slow", 1)

	// The last of 0.1.0 takes part in a rollout of the next version.
	publish(next, "two", slowly("--parallel", "1", "--canary", slowHost)...)
	s.allUse(t, "two")
	if out, _ := commandOf(t, former, nil, "fleet", "--zk", zk); versionOf(out, slowHost) != "0.1.0" {
		t.Errorf("no host of 0.1.0 was left:\n%s", out)
	}
	upgrade(slowHost)
	by(former, "rollout", "rollback", site, "--vote-timeout", "80s")
	s.allUse(t, "slow")
	s.subscribed(t, len(hosts))

	tree := must(t, "zk", "tree", site, "--data", "--depth", "20", "--zk", zk)
	if n := strings.Count(tree, `{"`+addedField); n < 10 {
		t.Errorf("%d records have the new field:\n%s", n, tree)
	}
}

// versionOf is what a row of "zkagent fleet" says about the program of a host.
func versionOf(table, id string) string {
	for line := range strings.Lines(table) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == id {
			for _, w := range words {
				if strings.HasPrefix(w, "0.") {
					return w
				}
			}
		}
	}
	return ""
}

// buildVersion builds the program of a version.
func buildVersion(t *testing.T, version string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "zkagent")
	args := append([]string{"build", "-ldflags", "-X main.version=" + version, "-o", file}, flags...)
	if out, err := exec.CommandContext(t.Context(), "go", append(args, "../cmd/zkagent")...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", version, err, out)
	}
	return file
}

// nextRecords makes the sources of a next version: every struct that the agents write
// as JSON gets one more field. It returns the file for the flag -overlay of Go.
func nextRecords(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	replaced := map[string]string{}
	replace := func(file, text string) {
		abs, err := filepath.Abs(file)
		if err == nil {
			replaced[abs] = filepath.Join(dir, strings.ReplaceAll(abs, "/", "_"))
			err = os.WriteFile(replaced[abs], []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	count := 0
	for _, pattern := range []string{"../fleet/*.go", "../config/*.go", "../internal/rolling/*.go", "../registry/service.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			if text, n := withField(t, file); n > 0 {
				replace(file, text)
				count += n
			}
		}
		pkg := filepath.Dir(files[0])
		replace(filepath.Join(pkg, "added_field.go"), fmt.Sprintf(addedType, filepath.Base(pkg)))
	}
	if count < 20 {
		t.Fatalf("only %d records were found", count)
	}
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withField is a source file whose records have one more field, and their number.
func withField(t *testing.T, file string) (string, int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var at []int
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if record, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range record.Fields.List {
				if f.Tag != nil && strings.Contains(f.Tag.Value, `json:"`) {
					at = append(at, set.Position(record.Fields.Opening).Offset+1)
					break
				}
			}
		}
		return true
	})
	text := string(data)
	for _, end := range slices.Backward(at) {
		text = text[:end] + "\nAddedField addedField `json:\"" + addedField + "\"`" + text[end:]
	}
	return text, len(at)
}
