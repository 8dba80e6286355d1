package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// TestSignals_Together: two signals at once, as timeout sends them to a process and
// to its group, end an agent and a waiting command in order.
func TestSignals_Together(t *testing.T) {
	server := memzk.New(memzk.Options{})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(socketPath(t))
	file := filepath.Join(dir, "zkagent.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
admin { socket = "%[1]s/sock" }
zookeeper { servers = ["%[2]s"] }
service "web" {
  group   = "/services/web"
  address = "127.0.0.1"
  port    = 80
}
`, dir, addr), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "ZKAGENT_CONFIG="+file, "NO_COLOR=1")
	start := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, "zkagent", args...)
		var talk bytes.Buffer
		cmd.Env, cmd.Stdout, cmd.Stderr = env, &talk, &talk
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, &talk
	}
	children := func(path string, want int) {
		t.Helper()
		deadline := time.Now().Add(limit)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			names, err := server.Children(path)
			if len(names) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s has %v (%v), want %d", path, names, err, want)
			}
			<-tick.C
		}
	}
	end := func(cmd *exec.Cmd, talk *bytes.Buffer, want ...int) {
		t.Helper()
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		code := 0
		if exit, ok := errors.AsType[*exec.ExitError](cmd.Wait()); ok {
			code = exit.ExitCode()
		}
		if !slices.Contains(want, code) || strings.Contains(talk.String(), "forced") || strings.Contains(talk.String(), "second signal") {
			t.Errorf("%v ended with %d, want %d:\n%s", cmd.Args, code, want, talk)
		}
	}
	interrupted := []int{exitSignal + int(syscall.SIGTERM), exitSignal + int(syscall.SIGINT)} // the kernel has no order
	agent, log := start("run")
	children("/services/web", 1)
	end(agent, log, 0)
	children("/services/web", 0)

	holder, talk := start("lock", "backup", "--", "sleep", "1000")
	children("/zkagent/locks/backup", 1)
	waiter, words := start("lock", "backup", "--", "true")
	children("/zkagent/locks/backup", 2)
	end(waiter, words, interrupted...)
	children("/zkagent/locks/backup", 1)
	end(holder, talk, interrupted...)
	children("/zkagent/locks/backup", 0)
}
