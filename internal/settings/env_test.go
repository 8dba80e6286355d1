package settings

import (
	"maps"
	"slices"
	"testing"
)

// The environment of a block goes over that of the agent, for every kind of
// command.
func TestEnv_OfTheBlockAndTheAgent(t *testing.T) {
	c := load(t, `
zookeeper { servers = ["zk1"] }
template "t" {
  contents    = "x"
  destination = "/tmp/t"
  check {
    command = ["true"]
    env     = { A = "check" }
  }
  reload {
    command = ["true"]
    env     = { A = "reload" }
    rolling {
      permits    = "1"
      post_check = ["true"]
    }
  }
}
hook "h" {
  schedule = "@daily"
  command  = ["true"]
  env      = { A = "hook" }
  pass_env = ["APP_*"]
}
exec "e" {
  command     = ["true"]
  kill_signal = "QUIT"
}
agent {
  env      = { A = "agent", B = "agent" }
  pass_env = ["DATABASE_URL"]
}
`).Config
	bundle := c.Bundles[0]
	for what, got := range map[string]map[string]string{
		"check": bundle.Check.Command.Env.Set, "reload": bundle.Reload.Command.Env.Set, "hook": c.Hooks[0].Command.Env.Set, "agent": c.Execs[0].Command.Env.Set,
	} {
		if want := map[string]string{"A": what, "B": "agent"}; !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	if got := bundle.Reload.Rolling.PostCheck.Env.Set["A"]; got != "reload" {
		t.Errorf("post_check: got %q", got)
	}
	if got := c.Hooks[0].Command.Env.Pass; !slices.Equal(got, []string{"DATABASE_URL", "APP_*"}) {
		t.Errorf("pass_env: got %v", got)
	}
	if c.Execs[0].KillSignal != "QUIT" {
		t.Errorf("kill_signal: got %q", c.Execs[0].KillSignal)
	}
}
