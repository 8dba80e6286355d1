package settings

import (
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
