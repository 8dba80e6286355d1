package settings

import (
	"strings"
	"testing"
)

// An argument with the path of a file and with data from ZooKeeper follows the
// rule for data, in each run.
func TestCommand_DataBesideAPath(t *testing.T) {
	text := `
zookeeper { servers = ["127.0.0.1"] }
groups "all" { path = "/services" }
template "t" {
  contents    = "x"
  for_each    = groups.all
  destination = "/tmp/${each.key}"
  reload { command = ["app", "${destination}${each.key}"] }
}
`
	for range 50 {
		if s, err := LoadBytes("zkagent.hcl", []byte(text), Options{}); err == nil {
			t.Fatalf("no error; diagnostics: %v", s.Diagnostics)
		}
	}
}

// A command that a condition makes null has no program; it is an error with its place.
func TestCommand_Null(t *testing.T) {
	text := `
zookeeper { servers = ["127.0.0.1"] }
config "c" { path = "/c" }
hook "h" {
  on_change = [config.c]
  command   = hostname() == "x" ? ["true"] : null
}
`
	s, err := LoadBytes("zkagent.hcl", []byte(text), Options{Hostname: func() (string, error) { return "y", nil }})
	if err == nil || !strings.HasPrefix(Line(s.Diagnostics[0]), "zkagent.hcl:6:15: Empty command") {
		t.Errorf("got %v, want an error about an empty command in line 6", s.Diagnostics)
	}
}
