package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// troubles is an agent with something of every kind, all named "one", of which most
// is not well.
const troubles = `
agent {
  id        = "host-one"
  state_dir = "%[1]s/state"
}
admin { socket = "%[1]s/sock" }
zookeeper { servers = ["%[2]s"] }
config "one" {
  path   = "/config/one"
}
group "one" { path = "/services/one" }
election "one" { path = "/elections/one" }
service "one" {
  group   = "/services/one"
  address = "127.0.0.1"
  port    = 80
  check "exec" {
    command  = ["false"]
    interval = "20s"
    fall     = 1
  }
}
template "one" {
  contents    = "{{ key \"one/port\" }}\n"
  destination = "%[1]s/one.conf"
  check { command = ["false"] }
}
hook "one" {
  leader     = election.one
  on_elected = true
  command    = ["false"]
}
`

// printed is the commands that conditions and the page ask people to run, with the
// names of their subjects filled in.
func printed(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	quoted := regexp.MustCompile("`(zkagent [^`]*)`")
	for _, e := range condition.Kinds() {
		c := condition.Condition{Code: e.Code}
		if e.Subject != "" {
			c.Subject = "one"
		}
		for _, m := range quoted.FindAllStringSubmatch(c.Kind().Do, -1) {
			found[m[1]] = "condition " + e.Code
		}
	}
	code := regexp.MustCompile(`<code>(zkagent [^<]*)</code>`)
	field := regexp.MustCompile(`\{\{[^}]*\}\}|\bNAME\b`)
	words := strings.NewReplacer("DIR", t.TempDir(), "COMMAND", "true")
	err := filepath.WalkDir("../../internal/web/page", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".html" {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range code.FindAllStringSubmatch(string(data), -1) {
			found[words.Replace(field.ReplaceAllString(m[1], "one"))] = filepath.Base(path)
		}
		return err
	})
	if err != nil || len(found) < 10 {
		t.Fatalf("found %v, %v", found, err)
	}
	return found
}

// TestPrintedCommands_Run runs every command that a condition or the page prints,
// beside an agent that is in trouble: none is misspelt, lacks an argument, or names
// what does not exist.
func TestPrintedCommands_Run(t *testing.T) {
	t.Parallel()
	server := memzk.New(memzk.Options{})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/config", "/config/one", "/config/one/port", "/config/one/ready", "/services", "/services/one"} {
		if err := server.Create(path, []byte("80")); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Dir(socketPath(t))
	file := filepath.Join(dir, "zkagent.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, troubles, dir, addr), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "ZKAGENT_CONFIG="+file, "NO_COLOR=1")
	zkagent := func(args ...string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := exec.CommandContext(ctx, "zkagent", args...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode(), string(out)
		}
		if err != nil {
			t.Fatalf("zkagent %v: %v", args, err)
		}
		return 0, string(out)
	}
	agent := exec.Command("zkagent", "run")
	var log bytes.Buffer
	agent.Env, agent.Stdout, agent.Stderr = env, &log, &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Signal(os.Interrupt)
		_ = agent.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	// The record in ZooKeeper comes some seconds after the status.
	eventually := func(wants []string, args ...string) {
		t.Helper()
		deadline := time.Now().Add(limit)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			code, out := zkagent(args...)
			missing := ""
			for _, want := range wants {
				if !strings.Contains(out, want) {
					missing = want
				}
			}
			if missing == "" && code == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: waited in vain for %q: %d\n%s\n%s", args, missing, code, out, log.String())
			}
			<-tick.C
		}
	}
	eventually([]string{"service-critical one", "template-failed one", "hook-failed one"}, "status")
	eventually([]string{"host-one  failing", "service-critical one: exit status 1", "1 host: 1 failing"}, "fleet")
	eventually([]string{"critical", "has failed with exit status 1"}, "fleet", "--services", "one")
	if code, out := zkagent("status", "--check"); code != 2 || !strings.Contains(out, "service-critical one") {
		t.Errorf("the check of an agent in trouble: %d %s", code, out)
	}
	if code, out := zkagent("fleet", "--services", "none"); code != 1 {
		t.Errorf("a service that nobody has: %d\n%s", code, out)
	}
	if code, out := zkagent("fleet", "forget", "host-one"); code != 1 || !strings.Contains(out, "is running") {
		t.Errorf("a host that runs: %d\n%s", code, out)
	}
	wrong := regexp.MustCompile(`(?i)unknown (command|flag|shorthand)|has no (command|flag)|takes (at most |at least |no )?\d* ?arguments?|accepts |requires |usage:|no (config|group|template|hook|election|service|bundle) (named )?"?one|does not exist`)
	for command, where := range printed(t) {
		if strings.Contains(command, "zkagent run") || strings.Contains(command, "zkagent rollout") || testhelp.NotToday(command, 2) {
			continue // it runs already; rollouts have tests of their own
		}
		code, out := zkagent(strings.Fields(command)[1:]...)
		if code == exitUsage || wrong.MatchString(out) {
			t.Errorf("%s prints %q, which ends with %d:\n%s", where, command, code, out)
		}
	}
}

// brokenWriter is standard output on a full disk.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestOutput_CannotBeWritten: a command whose output is lost does not end with 0.
func TestOutput_CannotBeWritten(t *testing.T) {
	var errOut bytes.Buffer
	if code := run([]string{"options"}, strings.NewReader(""), brokenWriter{}, &errOut); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if got := errOut.String(); !strings.Contains(got, "no space left") {
		t.Errorf("standard error %q does not name the reason", got)
	}
}
