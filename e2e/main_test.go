package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	relayMain()
	dir, err := os.MkdirTemp("", "zkagent-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "zkagent")
	out, err := exec.Command("go", "build", "-o", binary, "../cmd/zkagent").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	os.Exit(runAndClean(m, dir))
}

func runAndClean(m *testing.M, dir string) int {
	defer os.RemoveAll(dir)
	return m.Run()
}

// zookeeper starts a server of the test's own; these tests stop and freeze it.
func zookeeper(t *testing.T) *zktest.Server {
	t.Helper()
	return zktest.Start(t)
}
