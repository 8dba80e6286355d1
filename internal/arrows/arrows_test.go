package arrows

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/zkagent/zkagent/"

// allowed lists, for each package, which packages of ours it may import.
// Every package must have a line.
var allowed = map[string][]string{
	"view":               {},
	"internal/jute":      {},
	"internal/pace":      {},
	"internal/lists":     {},
	"internal/filewatch": {},
	"internal/keeper":    {},
	"internal/lastgood":  {"internal/files", "view"},
	"internal/hook": {
		"view", "session", "election", "internal/command", "internal/condition", "internal/event", "internal/files", "internal/pace", "internal/proc",
	},
	"internal/apply": {
		"internal/lists", "view", "template", "internal/command", "internal/condition", "internal/event", "internal/files", "internal/pace", "internal/proc",
	},
	"internal/blame":           {"internal/lists", "view", "config", "session", "template", "internal/apply", "internal/term"},
	"internal/renderlog":       {"internal/files", "internal/term", "view"},
	"internal/condition":       {},
	"internal/command":         {"internal/proc", "template", "view"},
	"internal/event":           {"internal/files"},
	"internal/zktest/testhelp": {},
	"internal/arrows":          {},
	"internal/files":           {},
	"internal/zktest/history":  {},
	"internal/peers":           {"session", "internal/zktest/testhelp"},
	"internal/systemd":         {},
	"internal/proc":            {},
	"internal/dns":             {"view", "internal/pace"},
	"internal/haproxy":         {"view"},
	"internal/term":            {},
	"internal/memzk":           {"internal/jute", "internal/pace"},
	"internal/zktest":          {"internal/jute", "internal/zktest/testhelp", "internal/zktest/raw"},
	"internal/zktest/memzk":    {"internal/jute", "internal/memzk"},
	"internal/zktest/plants":   {},
	"internal/zktest/raw":      {"internal/jute"},
	"zktest":                   {"session", "internal/jute", "internal/zktest/memzk"},
	"e2e":                      {},
	"session":                  {"internal/lists", "internal/files", "internal/jute", "internal/pace"},
	"session/kerberos":         {"internal/files", "session"},
	"recipe":                   {"internal/lists", "session", "internal/keeper", "internal/mirror"},
	"internal/mirror":          {"internal/lists", "session"},
	"internal/trees":           {"internal/lists", "view", "session"},
	"config":                   {"view", "session", "internal/mirror", "internal/trees"},
	"registry":                 {"internal/lists", "view", "session", "recipe", "internal/files", "internal/keeper", "internal/mirror"},
	"election":                 {"view", "session", "recipe"},
	"prom":                     {"session"},
	"template":                 {"internal/lists", "view"},
	"fleet":                    {"internal/lists", "view", "session", "recipe", "config", "election", "internal/mirror", "internal/pace", "internal/trees"},
	"internal/rolling":         {"session", "recipe", "internal/files", "internal/pace"},
	"internal/show":            {"internal/lists", "view", "config", "registry", "fleet", "internal/condition", "internal/hook", "internal/term"},
	"internal/web": {
		"internal/lists", "internal/rolling", "internal/blame", "internal/pace", "internal/show", "internal/term", "recipe",
		"view", "session", "config", "registry", "fleet", "internal/condition", "internal/event",
	},
	"agent": {
		"internal/lists", "view", "session", "recipe", "config", "registry", "election", "prom", "template", "fleet",
		"internal/files", "internal/proc", "internal/condition", "internal/event", "internal/systemd", "internal/command", "internal/show", "internal/term", "internal/web",
		"internal/apply", "internal/blame", "internal/renderlog", "internal/filewatch", "internal/hook", "internal/lastgood", "internal/pace", "internal/rolling", "internal/dns",
	},
	"internal/dev": {
		"internal/lists", "agent", "view", "session", "config", "fleet", "registry", "examples/quickstart", "internal/apply", "internal/condition", "internal/memzk", "internal/pace", "internal/proc", "internal/settings", "internal/show", "internal/term", "internal/web", "template",
	},
	"internal/zktest/filestest": {
		"internal/files",
	},
	"internal/doctor":    {"internal/lists", "agent", "view", "internal/apply", "internal/command", "internal/condition", "internal/dns", "internal/files", "session", "internal/settings", "internal/show", "internal/term", "internal/web"},
	"internal/tmpltest":  {"internal/lists", "agent", "view", "template", "internal/apply", "internal/files", "internal/settings", "internal/term"},
	"internal/translate": {"internal/lists", "template"},
	"internal/settings": {
		"internal/lists", "agent", "view", "session", "config", "internal/trees", "registry", "election", "template", "internal/command", "internal/files", "internal/proc", "internal/web", "internal/hook", "internal/dns", "internal/apply", "internal/rolling", "internal/pace", "session/kerberos",
	},
}

// free are packages at the edges, which may import everything of ours.
var free = []string{"cmd/", "examples", "docs", "packaging"}

// forTests are packages that only tests import.
var forTests = []string{"zktest", "internal/zktest", "internal/zktest/raw", "internal/zktest/history", "internal/zktest/memzk", "internal/peers", "internal/zktest/testhelp", "internal/zktest/filestest"}

// client is the library that only session may import.
const client = "github.com/go-zookeeper/zk"

type listed struct {
	ImportPath, Dir, Doc string
	Imports, GoFiles     []string
}

func TestArrows(t *testing.T) {
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || isFree(name) {
			continue
		}
		may, known := allowed[name]
		if !known {
			t.Errorf("%s has no line in the table of arrows", name)
			continue
		}
		for _, imported := range p.Imports {
			if imported == client && name != "session" {
				t.Errorf("%s imports the ZooKeeper client: only session may", name)
			}
			if strings.HasPrefix(imported, "github.com/hashicorp/hcl/") && name != "internal/settings" {
				t.Errorf("%s imports HCL: only internal/settings may", name)
			}
			if target, ok := strings.CutPrefix(imported, module); ok && !slices.Contains(may, target) {
				t.Errorf("%s imports %s: the arrows allow it only %v", name, target, may)
			}
			if imported == "testing" && !slices.Contains(forTests, name) {
				t.Errorf("%s imports testing outside of tests", name)
			}
		}
	}
}

// TestLean: a program that takes a lock or stands in an election contains none of the
// modules that only the agent needs.
func TestLean(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"recipe", module+"election").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		for _, heavy := range []string{"github.com/prometheus/", "google.golang.org/protobuf/", "github.com/hashicorp/", "github.com/spf13/", "net/http"} {
			if strings.HasPrefix(line, heavy) {
				t.Errorf("recipe or election needs %s", strings.TrimSpace(line))
			}
		}
	}
}

func isFree(name string) bool {
	return slices.ContainsFunc(free, func(f string) bool { return strings.HasPrefix(name, f) })
}

func list(t *testing.T) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Dir,Doc,GoFiles", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, p)
	}
}
