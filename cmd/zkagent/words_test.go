package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestComplete_WithServerAlone: paths and keys are completed with --zk and no
// settings.
func TestComplete_WithServerAlone(t *testing.T) {
	t.Parallel()
	_, zk := lockServer(t)
	for path, data := range map[string]string{"/config/site/timeouts/read": "30s", "/config/site/port": "80", "/config/site/ready": "", "/config/shop/a": "1"} {
		if out, err := command(zk, "zk", "create", path, data, "--parents", "--yes", "--force"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for line, want := range map[string]string{
		"zk get /con":             "/config",
		"zk ls /config/s":         "/config/shop /config/site",
		"watch /config/site/p":    "/config/site/port /config/site/ready /config/site/timeouts",
		"config get /config/si":   "/config/shop /config/site",
		"config get /config/site": "/config/shop /config/site",
	} {
		out, err := command(zk, append([]string{"__complete"}, strings.Fields(line)...)...)
		got, _, _ := strings.Cut(out, ":")
		if err != nil || strings.Join(strings.Fields(got), " ") != want && !strings.Contains(got, want) {
			t.Errorf("%s: got %q, %v", line, got, err)
		}
	}
	root := newRoot(newGlobals(nil, nil, nil))
	if err := root.PersistentFlags().Set("zk", strings.TrimPrefix(zk, "ZKAGENT_ZK=")); err != nil {
		t.Fatal(err)
	}
	var every func(*cobra.Command)
	every = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			every(sub)
		}
		if !strings.Contains(c.Use, "PATH") {
			return
		}
		args := slices.Repeat([]string{"DIR"}, strings.Count(c.Use, "FILE"))
		if got, _ := c.ValidArgsFunction(c, args, "/con"); !slices.Contains(got, "/config") {
			t.Errorf("%s completes /con to %q", c.Use, got)
		}
	}
	out, err := command(zk, "__complete", "config", "get", "/config/site", "")
	if err != nil || !strings.Contains(out, "port\n") || !strings.Contains(out, "timeouts/read\n") {
		t.Errorf("keys: got %q, %v", out, err)
	}
}

// TestWords_ThatPeopleTry: an error about a word that is not a command names the
// command, and other names of commands work.
func TestWords_ThatPeopleTry(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"config show": "zkagent config get", "config rm": "zkagent config delete", "drain": "zkagent maint", "hosts": "zkagent fleet", "logs": "zkagent events",
		"publish": "zkagent config publish", "rollback": "zkagent config rollback", "undo": "zkagent rollout undo", "cat": "zkagent zk get",
		"deploy": "zkagent config publish", "config revert": "zkagent config rollback", "config audit": "zkagent audit", "rollout info": "zkagent rollout status",
		"show": `zkagent config get" or "zkagent rollout status" or "zkagent zk get`, "zk setAcl": "zkagent zk acl", "stop": "zkagent leave",
	} {
		var talk bytes.Buffer
		code := run(strings.Fields(line), strings.NewReader(""), &bytes.Buffer{}, &talk)
		if code != exitUsage || !strings.Contains(talk.String(), `did you mean "`+want+`"?`) {
			t.Errorf("%s: %d %s", line, code, &talk)
		}
	}
	root := newRoot(newGlobals(nil, nil, nil))
	for line, want := range map[string]string{"zk cat": "get", "rollout history": "list", "config ls": "list"} {
		if c, _, err := root.Find(strings.Fields(line)); err != nil || c.Name() != want {
			t.Errorf("%s is %v, %v", line, c.Name(), err)
		}
	}
	lines := 0
	for _, c := range root.Commands() {
		if c.GroupID == groups[0].id {
			lines++
		}
	}
	if lines != 15 {
		t.Errorf("the help begins with %d commands", lines)
	}
}
