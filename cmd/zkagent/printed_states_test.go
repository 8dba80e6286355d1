package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// brokenScript waits like waitScript. It refuses contents that begin with "refused",
// and cannot reload those that begin with "broken" until it is repaired.
const brokenScript = `#!/bin/sh
until [ -e "$(dirname "$0")/$1" ]; do sleep 0.05; done
case $1:$(cat "$2") in
may-check:refused*) exit 3;;
may-reload:broken*) [ -e "$(dirname "$0")/repaired" ] || exit 3;;
esac
`

// phases brings rollouts of /config/web into all of their phases.
type phases struct {
	*testing.T

	hosts    []*host
	env      []string
	n        int    // contents that were published
	proposed string // what the newest proposal printed
}

// run runs zkagent in the directory of the first host.
func (p *phases) run(args ...string) (int, string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "zkagent", args...)
	cmd.Dir, cmd.Env = p.hosts[0].dir, p.env
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	}
	if err != nil {
		p.Fatalf("zkagent %v: %v", args, err)
	}
	return 0, string(out)
}

// ok runs zkagent, which must succeed, and returns what it printed.
func (p *phases) ok(args ...string) string {
	p.Helper()
	code, out := p.run(args...)
	if code != 0 {
		p.Fatalf("zkagent %v: got exit code %d:\n%s", args, code, out)
	}
	return out
}

// content makes the directory DIR hold other content, which begins with the word.
func (p *phases) content(word string) {
	p.Helper()
	p.n++
	dir := filepath.Join(p.hosts[0].dir, "DIR")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.Fatal(err)
	}
	p.hosts[0].write("DIR/word", fmt.Sprintf("%s %d", word, p.n))
}

// propose opens a rollout of other content, which goes on by itself.
func (p *phases) propose(word string, flags ...string) {
	p.Helper()
	p.content(word)
	args := []string{"config", "publish", "DIR", "/config/web", "--rollout", "--detach", "--parallel", "1", "--bake", "0s", "--vote-timeout", "10m", "--grace", "10m"}
	p.proposed = p.ok(append(args, flags...)...)
}

// until waits until the newest rollout is as wanted.
func (p *phases) until(what string, ok func(*fleet.State) bool) {
	p.Helper()
	h := p.hosts[0]
	h.await(what, func() bool {
		names, err := fleet.Names(p.Context(), h.s, "/config/web")
		if err != nil || len(names) == 0 {
			return false
		}
		state, err := fleet.Read(p.Context(), h.s, "/config/web", names[len(names)-1])
		return err == nil && ok(state)
	})
}

func (p *phases) phase(word string) {
	p.Helper()
	p.until(word, func(s *fleet.State) bool { return s.Phase() == word })
}

func (p *phases) waits(word string) {
	p.Helper()
	p.until(word, func(s *fleet.State) bool { return s.Coordinator != "" && s.Waiting(s.Created).For == word })
}

func (p *phases) allow(name string, on bool) {
	for _, h := range p.hosts {
		h.allow(name, on)
	}
}

// reset ends what is open, and waits until every host uses the same version.
func (p *phases) reset() {
	p.Helper()
	for _, h := range p.hosts {
		for _, name := range []string{"may-check", "may-reload"} {
			h.allow(name, true)
		}
		_ = os.Remove(filepath.Join(h.dir, "repaired"))
	}
	_, _ = p.run("config", "unfreeze", "/config/web")
	p.content("good")
	p.ok("config", "publish", "DIR", "/config/web", "--emergency", "--yes")
	p.hosts[0].await("one version on every host", func() bool {
		ready, _, err := trees.ReadReady(p.Context(), p.hosts[0].s, "/config/web")
		if err != nil {
			return false
		}
		subs, err := fleet.Subscribers(p.Context(), p.hosts[0].s, "/config/web")
		return err == nil && len(subs) == len(p.hosts) &&
			!slices.ContainsFunc(subs, func(u fleet.Subscription) bool { return u.Version != ready.Version || u.State != fleet.StateOK })
	})
}

// halt brings about a rollout that has halted.
func (p *phases) halt() {
	p.Helper()
	p.propose("broken")
	p.phase(fleet.PhaseHalted)
}

// make brings each phase about.
var makePhase = map[string]func(*phases){
	"voting": func(p *phases) {
		p.allow("may-check", false)
		p.propose("good")
		p.phase(fleet.PhaseVoting)
	},
	"waiting": func(p *phases) {
		p.allow("may-reload", false)
		p.propose("good")
		p.waits(fleet.WaitPermits)
	},
	"baking": func(p *phases) {
		p.propose("good", "--canary", "1", "--bake", "10m")
		p.waits(fleet.WaitBake)
	},
	"paused": func(p *phases) {
		p.propose("good", "--canary", "1", "--bake", "10m")
		p.waits(fleet.WaitBake)
		p.ok("rollout", "pause", "/config/web", "--reason", "lunch")
	},
	"paused while voting": func(p *phases) {
		p.allow("may-check", false)
		p.propose("good")
		p.ok("rollout", "pause", "/config/web", "--reason", "lunch")
	},
	"halted": (*phases).halt,
	"refused": func(p *phases) {
		p.halt()
		p.propose("refused", "--replace")
		p.phase(fleet.PhaseRefused)
	},
	"rolling back": func(p *phases) {
		p.halt()
		p.ok("rollout", "undo", "/config/web", "--detach", "--vote-timeout", "10m", "--grace", "10m", "--canary", "1", "--bake", "10m")
		p.waits(fleet.WaitBake) // The hosts have the old files already: no reload holds them.
	},
	"rolled back": func(p *phases) {
		p.halt()
		p.ok("rollout", "undo", "/config/web", "--vote-timeout", "10m", "--grace", "10m")
	},
	"aborted": func(p *phases) {
		p.propose("refused")
		p.phase(fleet.PhaseAborted)
	},
	"replaced": func(p *phases) {
		p.halt()
		p.propose("good", "--replace")
		p.phase(fleet.PhaseDone)
	},
	"done": func(p *phases) {
		p.propose("good")
		p.phase(fleet.PhaseDone)
	},
	"frozen": func(p *phases) { p.ok("config", "freeze", "/config/web", "--reason", "sale") },
}

// views returns what every view shows of the rollouts, by view. Orders that the phase
// does not take are views, too: they are refused, with hints.
func (p *phases) views() map[string]string {
	p.Helper()
	texts := map[string]string{"the proposal": p.proposed}
	views := [][]string{
		{"status"},
		{"status", "-o", "wide"},
		{"fleet"},
		{"fleet", "/config/web"},
		{"fleet", "--services"},
		{"rollout", "status", "/config/web"},
		{"rollout", "list", "/config/web"},
		{"config", "history", "/config/web"},
		{"config", "plan", "DIR", "/config/web", "--rollout"},
	}
	for _, args := range slices.Clone(views) { // what machines read has commands, too
		for _, format := range []string{"json", "yaml", "ndjson"} {
			if view := append(slices.Clone(args), "-o", format); testhelp.Today(view, 3) {
				views = append(views, view)
			}
		}
	}
	views = append(views, []string{"events", "-o", "ndjson"})
	texts["rollout watch -o ndjson"] = p.watched()
	p.content("good")
	if name, err := fleet.Current(p.Context(), p.hosts[0].s, "/config/web"); err == nil {
		state, err := fleet.Head(p.Context(), p.hosts[0].s, "/config/web", name)
		if err != nil {
			p.Fatal(err)
		}
		views = append(views, []string{"config", "publish", "DIR", "/config/web"}, []string{"config", "publish", "DIR", "/config/web", "--rollout"})
		switch phase := state.Phase(); {
		case phase == fleet.PhaseHalted, phase == fleet.PhaseRefused:
			views = append(views, []string{"rollout", "pause", "/config/web"}, []string{"rollout", "resume", "/config/web"}, []string{"rollout", "watch", "/config/web"})
		case state.Gate.State == fleet.GateVoting:
			views = append(views, []string{"rollout", "retry", "/config/web"}, []string{"rollout", "undo", "/config/web"})
		default:
			views = append(views, []string{"rollout", "retry", "/config/web"})
		}
	} else {
		for _, order := range []string{"pause", "resume", "retry", "abort"} {
			views = append(views, []string{"rollout", order, "/config/web"})
		}
		if frozen, err := fleet.Frozen(p.Context(), p.hosts[0].s, "/config/web"); err == nil && frozen != nil {
			views = append(views, []string{"config", "publish", "DIR", "/config/web"}, []string{"rollout", "undo", "/config/web"})
		}
	}
	for _, args := range views {
		_, texts[strings.Join(args, " ")] = p.run(args...)
	}
	for view, text := range texts {
		texts[view] += "\n" + unquoted(text)
	}
	for _, path := range []string{"/", "/rollouts", "/agent", "/hosts/web-1"} {
		r, err := http.Get("http://" + p.hosts[0].http + path)
		if err != nil {
			p.Fatal(err)
		}
		data, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			p.Fatal(err)
		}
		texts["page "+path] = string(data)
	}
	return texts
}

// watched returns the first events of the newest rollout for machines. An open one is
// followed until it waits for something.
func (p *phases) watched() string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "zkagent", "rollout", "watch", "/config/web", "-o", "ndjson")
	cmd.Dir, cmd.Env = p.hosts[0].dir, p.env
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	text := ""
	for lines.Scan() {
		line := lines.Text()
		text += line + "\n"
		if strings.Contains(line, `"event":"waiting"`) || strings.Contains(line, `"event":"phase"`) && !strings.Contains(line, `"state":"rolling"`) {
			_ = cmd.Process.Signal(os.Interrupt)
		}
	}
	_ = cmd.Wait()
	return text + talk.String()
}

// unquoted are the texts in the JSON documents and lines of an output, without the
// marks that JSON needs.
func unquoted(text string) string {
	var all strings.Builder
	for _, m := range quotedText.FindAllString(text, -1) {
		if s, err := strconv.Unquote(m); err == nil {
			all.WriteString(s + "\n")
		}
	}
	return all.String()
}

var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

var printedCommand = regexp.MustCompile("(?:\"|`|<code[^>]*>)(zkagent [a-z][^\"`<]*)(?:\"|`|</code>)")

// printed are the commands that the views print, with the view.
func (p *phases) printed() map[string]string {
	p.Helper()
	found := map[string]string{}
	fill := strings.NewReplacer(" DIR NAME", " DIR /config/web", " A B", " 1 2", " NAME -- COMMAND", " x -- true")
	for view, text := range p.views() {
		for _, m := range printedCommand.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "\\") || strings.Contains(m[1], " --check-version ") {
				continue // marks of JSON; and a plan's command, which is refused in some phases
			}
			found[fill.Replace(html.UnescapeString(m[1]))] = view
		}
	}
	return found
}

// changes reports whether a command changes the state that it is printed in.
func changes(command string) bool {
	return !regexp.MustCompile(`^zkagent (rollout (status|watch|list)|config (history|diff|plan)|fleet|status|doctor)\b`).MatchString(command)
}

// TestPrintedCommands_Phases brings a rollout into each phase and runs every command
// that any view prints there: it does what it says. Those that change the phase have turns.
func TestPrintedCommands_Phases(t *testing.T) {
	testhelp.OnlyAll(t, "a rollout for each command that a view prints")
	t.Parallel()
	p := &phases{T: t, hosts: newHosts(t, "web-1", "web-2")}
	for _, h := range p.hosts {
		h.write("nginx", brokenScript)
	}
	p.env = append(os.Environ(), append(p.hosts[0].env, "ZKAGENT_CONFIG="+filepath.Join(p.hosts[0].dir, "agent.hcl"))...)
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(makePhase)) {
		p.reset()
		makePhase[name](p)
		printed := p.printed()
		fresh := true
		for _, command := range slices.Sorted(maps.Keys(printed)) {
			seen[command] = true
			if changes(command) && !testhelp.Today(name+command, 3) {
				continue
			}
			if !fresh {
				p.reset()
				makePhase[name](p)
			}
			fresh = !changes(command)
			p.execute(name, command, printed[command])
		}
		t.Logf("%s: %d commands", name, len(printed))
	}
	for _, command := range []string{
		"zkagent rollout pause /config/web", "zkagent rollout resume /config/web", "zkagent rollout abort /config/web", "zkagent rollout retry /config/web",
		"zkagent rollout undo /config/web", "zkagent rollout watch /config/web", "zkagent config unfreeze /config/web",
		"zkagent config publish DIR /config/web --rollout --replace",
	} {
		if !seen[command] {
			t.Errorf("no view prints %q", command)
		}
	}
}

// execute runs a command in the state that prints it. What follows a rollout may go
// on then, and the hosts are repaired.
func (p *phases) execute(phase, command, view string) {
	p.Helper()
	args := strings.Fields(command)[1:]
	want := 0
	switch {
	case args[0] == "run":
		return // it runs already
	case strings.HasPrefix(command, "zkagent rollout watch"):
		p.attach(phase, command)
		return
	case regexp.MustCompile(`^zkagent rollout (abort|pause|resume)\b`).MatchString(command):
		// They end at once. Hosts that go on could end the rollout before.
	case changes(command):
		for _, h := range p.hosts {
			h.write("repaired", "")
			h.allow("may-check", true)
			h.allow("may-reload", true)
		}
		if strings.HasPrefix(command, "zkagent config publish") {
			p.content("good")
			args = append(args, "--bake", "0s") // a minute, otherwise
		}
	}
	if code, out := p.run(args...); code != want {
		p.Errorf("%s: %q, which %s prints, ends with %d:\n%s", phase, command, view, code, out)
	}
}

// attach follows a rollout: one that is over ends the command, any other is shown
// until somebody interrupts it.
func (p *phases) attach(phase, command string) {
	p.Helper()
	name, current := "", error(nil)
	if name, current = fleet.Current(p.Context(), p.hosts[0].s, "/config/web"); current == nil {
		if state, err := fleet.Head(p.Context(), p.hosts[0].s, "/config/web", name); err != nil || fleet.Over(state.Phase()) {
			current = fleet.ErrNoRollout
		}
	}
	if current != nil {
		if code, out := p.run(strings.Fields(command)[1:]...); code != 0 && code != exitFailed {
			p.Errorf("%s: %q ends with %d:\n%s", phase, command, code, out)
		}
		return
	}
	x := onTerminalIn(p.T, p.hosts[0].dir, 100, p.env, strings.Fields(command)[1:]...)
	x.await("/config/web: phase ")
	x.send("\x03")
	x.end(130)
}
