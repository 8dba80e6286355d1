package apply

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

func TestMain(m *testing.M) {
	proc.GuardMain()
	crashMain()
	os.Exit(m.Run())
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	testhelp.Eventually(t, what, ok)
}

// read is a file's text; empty when it is not there.
func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

// argv is a command with fixed arguments.
func argv(args ...string) command.Command {
	return command.Command{Text: strings.Join(args, " "), Args: func(command.Vars) ([]string, error) { return args, nil }}
}

// script is a shell command; a test may write one.
func script(format string, args ...any) command.Command {
	return argv("/bin/sh", "-c", fmt.Sprintf(format, args...))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
