package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// obstacles are what takes the place of a file in use.
var obstacles = map[string]func(path string) error{
	"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o755) },
	"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o666) },
	"socket": func(path string) error {
		l, err := net.Listen("unix", path)
		if err == nil {
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			err = l.Close()
		}
		return err
	},
	"device": func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|5) },
	"loop":   func(path string) error { return os.Symlink(path, path) },
	"zeros":  func(path string) error { return os.Symlink("/dev/zero", path) },
	"sparse": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 8<<40)) },
}

// Everything that can take the place of a file in use does, at once. All views say so,
// every command ends, TERM ends the agent, the next one starts, and a new version is used
// when the obstacles have gone.
func TestForeign_EveryObstacle(t *testing.T) {
	testhelp.OnlyAll(t, "half a minute of waiting for looks at the disk")
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root makes a device")
	}
	zk := zookeeper(t)
	publish(t, zk, "/config/web", map[string]string{"v": "1"})
	settings := fmt.Sprintf("zookeeper { servers = %s }\nconfig \"web\" { path = \"/config/web\" }\n", quoted([]string{zk}))
	for name := range obstacles {
		settings += fmt.Sprintf("template %q {\n  contents = \"{{ key \\\"web/v\\\" }}\"\n  destination = \"DIR/%s/f\"\n  create_dirs = true\n  check { command = [\"true\"] }\n}\n", name, name)
	}
	a := startAgent(t, "a", settings)
	holds := func(want string) {
		t.Helper()
		for name := range obstacles {
			fileHolds(t, a.path(name+"/f"), want, func(s string) bool { return s == want })
		}
	}
	holds("1")
	for name, put := range obstacles {
		if err := errors.Join(os.Remove(a.path(name+"/f")), put(a.path(name+"/f"))); err != nil {
			t.Fatal(name, err)
		}
	}
	reported := func() {
		t.Helper()
		a.await(t, "a condition of each file", func(s *show.Status) bool {
			for name := range obstacles {
				found := false
				for _, c := range s.Conditions {
					found = found || strings.Contains(c.Subject, name)
				}
				if !found {
					return false
				}
			}
			return true
		})
	}
	reported()
	for _, args := range [][]string{{"doctor"}, {"status"}, {"blame", "pipe"}, {"render", "--diff"}, {"history", "pipe"}, {"explain", "pipe"}} {
		began := time.Now()
		out, code := a.run(t, args...)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%v took %v", args, took)
		}
		if args[0] == "doctor" && (code == 0 || strings.Contains(out, a.path("directory/f")+"  can be written")) {
			t.Errorf("doctor exits with %d:\n%s", code, out)
		}
	}
	ends := func() {
		t.Helper()
		began := time.Now()
		a.stop(t)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the stop took %v", took)
		} else {
			t.Logf("TERM to the end: %v", took)
		}
	}
	ends()
	a.start(t)
	reported()
	ends()
	a.start(t)
	reported()
	for name := range obstacles {
		if err := os.RemoveAll(a.path(name + "/f")); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, zk, "/config/web", map[string]string{"v": "2"})
	holds("2")
	ends()
}
