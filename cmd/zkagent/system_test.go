package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestElsewhere: on another system the commands of an agent say where they work,
// and those for a fleet are as they are. A name that is gone would be offered there.
func TestElsewhere(t *testing.T) {
	var out bytes.Buffer
	root := newRoot(newGlobals(strings.NewReader(""), &out, &out))
	for _, name := range linuxOnly {
		c, _, err := root.Find([]string{name})
		if err != nil || c == root {
			if name != "explain" && name != "history" && name != "diff" {
				t.Errorf("there is no command %s: %v", name, err)
			}
			continue
		}
		parent := c.Parent()
		parent.RemoveCommand(c)
		elsewhere(c, "darwin")
		parent.AddCommand(c)
		for _, one := range append([]*cobra.Command{c}, c.Commands()...) {
			if err := one.RunE(one, []string{"x"}); err == nil || !strings.Contains(err.Error(), "on Linux only") || !one.Hidden {
				t.Errorf("%s: got %v", one.CommandPath(), err)
			}
		}
	}
	c, _, _ := root.Find([]string{"config", "publish"})
	if elsewhere(c, "darwin"); c.Hidden {
		t.Error("config publish is not for this system")
	}
}
