package agent

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
)

// TestExec_StartsRestartsAndEndsTheAgent is a supervised program: it starts
// when its file and its variables are there, is started anew when they change,
// and its exit code becomes the agent's.
func TestExec_StartsRestartsAndEndsTheAgent(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `port {{ key "web/port" }}`)}
	c.Execs = []ExecConfig{{
		Name: "main", EnvFrom: map[string]string{"PORT": "web/port"}, OnChange: "restart", KillTimeout: time.Minute,
		Command: script(`echo "$(cat %s) $PORT" >> %s; while ! test -e %s; do sleep 0.05; done; exit 7`, b.path("web.conf"), b.path("log"), b.path("end")),
	}}
	a := b.start(c)
	fileIs(t, b.path("log"), "port 80 80\n")
	b.set("/config/web/port", "81")
	eventually(t, "the program to be started with both", func() bool {
		lines := read(t, b.path("log"))
		return len(lines) > len("port 81 81\n") && lines[len(lines)-len("port 81 81\n"):] == "port 81 81\n"
	})
	if err := os.WriteFile(b.path("end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := <-a.done
	a.done <- err
	if e, ok := errors.AsType[*exitError](err); !ok || e.ExitCode() != 7 {
		t.Errorf("the agent ended with %v, want the program's exit code 7", err)
	}
}

// TestExec_SignalsAndKills is a program that reads its file again at a signal,
// and that does not heed TERM when the agent stops.
func TestExec_SignalsAndKills(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `port {{ key "web/port" }}`)}
	log := fmt.Sprintf("echo $(cat %s) >> %s", b.path("web.conf"), b.path("log"))
	c.Execs = []ExecConfig{{
		Name: "main", OnChange: onChangeSignal, Signal: "USR1", KillTimeout: 100 * time.Millisecond,
		Command: script(`trap '' TERM; trap '%s' USR1; %s; while :; do sleep 0.05; done`, log, log),
	}}
	a := b.start(c)
	fileIs(t, b.path("log"), "port 80\n")
	b.set("/config/web/port", "81")
	fileIs(t, b.path("log"), "port 80\nport 81\n")
	if err := a.stop(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// A change comes before the program catches the signal, which would end it.
func TestExec_SignalComesEarly(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	c.Bundles = []apply.Config{b.file("web.conf", `port {{ key "web/port" }}`)}
	c.Execs = []ExecConfig{{Name: "main", OnChange: onChangeSignal, Command: script(
		`echo begins >> %[1]s; sleep 1; trap 'cat %[2]s >> %[1]s' HUP; while :; do sleep 0.05; done`, b.path("log"), b.path("web.conf"),
	)}}
	a := b.start(c)
	fileIs(t, b.path("log"), "begins\n")
	b.set("/config/web/port", "81")
	fileIs(t, b.path("log"), "begins\nport 81")
	if err := a.stop(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// TestExec_KillSignalAndEnvironment is a program that ends well at QUIT, and gets
// the variables of the settings.
func TestExec_KillSignalAndEnvironment(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	c := b.config()
	main := script(`trap 'echo quit >> %s; exit 0' QUIT; echo $MODE >> %s; while :; do sleep 0.05; done`, b.path("log"), b.path("log"))
	main.Env = command.Env{Set: map[string]string{"MODE": "quiet"}}
	c.Execs = []ExecConfig{{Name: "main", KillSignal: "QUIT", KillTimeout: time.Minute, Command: main}}
	a := b.start(c)
	fileIs(t, b.path("log"), "quiet\n")
	if err := a.stop(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	fileIs(t, b.path("log"), "quiet\nquit\n")
}
