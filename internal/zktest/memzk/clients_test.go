package memzk

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// clientLimit bounds one run of a foreign client; a JVM on a busy machine is
// slow.
const clientLimit = 4 * time.Minute

const clientPackages = "apt-get install -y --no-install-recommends python3-kazoo libcurator-recipes-java openjdk-17-jdk-headless (or run scripts/setup-tests)"

// runClient runs a program that is given the address of a server and returns
// what it prints to its standard output.
func runClient(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v; if it is missing: %s\n%s\n%s", strings.Join(args, " "), err, clientPackages, out.String(), errs.String())
	}
	return out.String()
}

// compareClient runs a client on this package's server and on a real one and
// wants the same output, which must contain want.
func compareClient(t *testing.T, want string, run func(addr string) string) {
	t.Helper()
	servers := targets(t)
	got, reference := run(servers[0].addr), run(servers[1].addr)
	if !strings.Contains(reference, want) {
		t.Fatalf("the client did not get to its end on a real server:\n%s", reference)
	}
	diffLines(t, got, reference, servers[1].name)
}

func TestKazoo(t *testing.T) {
	compareClient(t, "cleaned None", func(addr string) string {
		return runClient(t, "", "/usr/bin/python3", "testdata/kazoo_smoke.py", addr)
	})
}

func TestCurator(t *testing.T) {
	const classPath = "/usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:/usr/share/java/curator-client.jar:" +
		"/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar:/usr/share/java/guava.jar"
	source, err := os.ReadFile(filepath.Join("testdata", "CuratorSmoke.java"))
	if err != nil {
		t.Fatal(err)
	}
	dir := testhelp.JavaClasses(t, classPath, "CuratorSmoke", source)
	compareClient(t, "cleaned true", func(addr string) string {
		return runClient(t, "", "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classPath+":"+dir, "CuratorSmoke", addr)
	})
}

func TestZkCli(t *testing.T) {
	testhelp.InTurn(t, 2)
	commands, err := os.ReadFile(filepath.Join("testdata", "zkcli.txt"))
	if err != nil {
		t.Fatal(err)
	}
	compareClient(t, "[zookeeper]", func(addr string) string {
		out := runClient(t, string(commands), "/usr/share/zookeeper/bin/zkCli.sh", "-timeout", "30000", "-waitforconnection", "-server", addr)
		return clientNoise.ReplaceAllString(out, "")
	})
}

// clientNoise is what zkCli.sh prints besides answers: its log, and the echo
// of the address.
var clientNoise = regexp.MustCompile(`(?m)^(Connecting to .*|\d{4}-\d\d-\d\d .*|WATCHER::|WatchedEvent .*|Welcome to .*|JLine .*|)\n`)
