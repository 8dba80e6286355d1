package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// limit bounds every wait of a script: the machine may be slow and busy, and
// nothing depends on how fast it is.
const limit = 2 * time.Minute

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // The tests wait more than they compute. A flag of go test goes first.
	testhelp.Economy()
	testscript.Main(tests{m}, map[string]func(){"zkagent": main})
}

// racePath is a PATH whose zkagent is this test program.
var racePath string

// tests has the plain zkagent in PATH. With the race detector, a start takes four times as
// much processor, and a complete run has thousands: the scripts alone, which have every
// command, start the test program, half of them each day.
type tests struct{ *testing.M }

// Run implements [testscript.TestingM].
func (m tests) Run() int {
	racePath = os.Getenv("PATH")
	if testhelp.All() {
		program, err := zktest.Zkagent()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		_ = os.Setenv("PATH", filepath.Dir(program)+string(filepath.ListSeparator)+racePath)
	}
	return m.M.Run()
}

// TestScripts runs the scripts of testdata/script, each with a chroot of its
// own on one in-memory ZooKeeper. A quick run takes half of them each day.
func TestScripts(t *testing.T) {
	server := memzk.New(memzk.Options{})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gitScripts, err := filepath.Abs("../../examples/git")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Files: slices.DeleteFunc(scripts, func(file string) bool { return testhelp.NotToday(file, 2) }),
		Setup: func(env *testscript.Env) error {
			chroot := "/" + strings.ReplaceAll(filepath.Base(env.WorkDir), "script-", "")
			if err := server.Create(chroot, nil); err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "zka-") //nolint:usetesting // sockets have short paths
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(dir) })
			env.Values["chroot"] = chroot
			if testhelp.Today(filepath.Base(env.WorkDir), 2) {
				env.Setenv("PATH", racePath)
			}
			env.Setenv("ZK", addr.String())
			env.Setenv("CHROOT", chroot)
			env.Setenv("ZKAGENT_ZK", addr.String()+chroot)
			env.Setenv("SOCK", filepath.Join(dir, "sock"))
			env.Setenv("NO_COLOR", "1")
			env.Setenv("GIT", gitScripts)
			env.Setenv("WHO", userName())
			env.Vars = append(env.Vars, testhelp.Economy()...)
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("there is no condition %q", name)
			}
			return os.Getuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":       code,
			"eventually": eventually,
			"waitfile":   waitFile,
			"waitgone": func(ts *testscript.TestScript, _ bool, args []string) {
				await(ts, func() bool {
					_, err := os.Stat(ts.MkAbs(args[0]))
					return os.IsNotExist(err)
				}, 20*time.Millisecond, func() string { return args[0] + " to be removed" })
			},
			"zkcreate": func(ts *testscript.TestScript, _ bool, args []string) {
				data := []byte(strings.Join(args[1:], " "))
				ts.Check(server.Create(ts.Value("chroot").(string)+args[0], data))
			},
			"zkdelete": func(ts *testscript.TestScript, _ bool, args []string) {
				deleteChildren(ts, server, ts.Value("chroot").(string)+args[0])
			},
		},
	})
}

// code runs a command that must end with the given exit code: code N CMD ARG...
func code(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = strconv.Itoa(exit.ExitCode())
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != args[0] {
		ts.Fatalf("got exit code %s, want %s", got, args[0])
	}
}

// eventually runs a command until its output matches: eventually REGEXP CMD ARG...
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile(args[0])
	var out bytes.Buffer
	await(ts, func() bool {
		out.Reset()
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), &out, &out
		cmd.Env = environment(ts)
		_ = cmd.Run()
		return want.Match(out.Bytes())
	}, 300*time.Millisecond, func() string { return "output that matches " + args[0] + ", last:\n" + out.String() })
}

// environment is what commands of the script get.
func environment(ts *testscript.TestScript) []string {
	env := os.Environ()
	for _, name := range []string{"ZK", "CHROOT", "ZKAGENT_ZK", "SOCK", "NO_COLOR", "PATH", "WORK", "HOME"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return env
}

// waitFile waits until a file exists and its content matches: waitfile PATH [REGEXP].
func waitFile(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("")
	if len(args) > 1 {
		want = regexp.MustCompile(args[1])
	}
	await(ts, func() bool {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && want.Match(data)
	}, 20*time.Millisecond, func() string { return "file " + args[0] })
}

// await polls until ok returns true, with pauses: an ok that starts a process wants long
// ones.
func await(ts *testscript.TestScript, ok func() bool, pause time.Duration, what func() string) {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			ts.Fatalf("waited %s for %s", limit, what())
		}
		<-tick.C
	}
}

// deleteChildren deletes what stands below a znode, as if a session had ended.
func deleteChildren(ts *testscript.TestScript, server *memzk.Server, path string) {
	names, err := server.Children(path)
	ts.Check(err)
	for _, n := range names {
		ts.Check(server.Delete(path + "/" + n))
	}
}
