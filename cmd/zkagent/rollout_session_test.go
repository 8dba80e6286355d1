package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// fullScript waits like waitScript. It cannot reload the new file while the disk is
// full.
const fullScript = `#!/bin/sh
until [ -e "$(dirname "$0")/$1" ]; do sleep 0.05; done
[ -e "$(dirname "$0")/full" ] && [ "$1 $(cat "$2")" = "may-reload two" ] || exit 0
echo "no space left on device"
exit 1
`

// transcript is what a session on a terminal leaves to read: its lines, and the bars
// that the test waited for, although others were drawn over them.
type transcript struct {
	text  strings.Builder
	waits map[string]bool // bars to keep
}

// What differs from one run to the next.
var (
	bakeLeft = regexp.MustCompile(`baking, [0-9]+ s left`)
	created  = regexp.MustCompile(`[0-9]{4}-[0-9-]*T[0-9:]*Z`)
)

// add appends a command and what it showed.
func (tr *transcript) add(command, out string) {
	tr.text.WriteString("$ " + command + "\n")
	out = bakeLeft.ReplaceAllString(out, "baking, 20 s left")
	out = created.ReplaceAllString(out, "2026-11-22T09:30:00Z")
	out = strings.ReplaceAll(out, " by "+userName()+":", " by ann:")
	for line := range strings.Lines(out) {
		frames := strings.Split(strings.TrimSuffix(line, "\n"), "\r\x1b[K")
		for i, frame := range frames {
			if i == len(frames)-1 || tr.waits[frame] {
				delete(tr.waits, frame)
				tr.text.WriteString(strings.TrimRight(frame, " ") + "\n")
			}
		}
	}
}

// sessionStep waits until a terminal shows a bar, which the transcript keeps, and
// goes on.
type sessionStep struct {
	bar string
	do  func()
}

// TestRollout_Session is the session that docs/fleet.md shows: a version bakes on the
// first host, halts at the second, is retried once that one has room again, and is
// rolled back.
func TestRollout_Session(t *testing.T) {
	testhelp.OnlyAll(t, "a rollout that bakes for twenty seconds")
	t.Parallel()
	hosts := newHosts(t, "web-1", "web-2")
	desk, last := hosts[0], hosts[1]
	reloads := func(on bool) func() {
		return func() {
			for _, h := range hosts {
				h.allow("may-reload", on)
			}
		}
	}
	for _, h := range hosts {
		h.write("nginx", fullScript)
	}
	last.write("full", "")
	if err := os.Rename(desk.site("two"), filepath.Join(desk.dir, "site")); err != nil {
		t.Fatal(err)
	}
	tr := &transcript{waits: map[string]bool{}}
	zkagent := func(command string, code int, steps ...sessionStep) string {
		t.Helper()
		args := regexp.MustCompile(`"[^"]*"|[^ ]+`).FindAllString(command, -1)[1:]
		for i := range args {
			args[i] = strings.Trim(args[i], `"`)
		}
		x := onTerminalIn(t, desk.dir, 100, desk.env, append(args, "--session-timeout", "40s")...)
		for _, step := range steps {
			tr.waits[step.bar] = true
			x.awaitMatch(regexp.MustCompile(bakeLeft.ReplaceAllString(regexp.QuoteMeta(step.bar), bakeLeft.String())))
			step.do()
		}
		out := x.end(code)
		tr.add(command, out)
		return out
	}
	reloads(false)()
	out := zkagent(`zkagent config publish ./site /config/web --rollout --canary web-1 --parallel 1 --bake 20s -m "longer timeouts"`, 1,
		sessionStep{" canary   " + emptyBar + "  0/1  then 1 at a time", reloads(true)},
		sessionStep{" canary   " + fullBar + "  1/1  baking, 20 s left", func() {}},
	)
	if left := slices.Compact(bakeLeft.FindAllString(out, -1)); len(left) < 2 {
		t.Errorf("the bake does not count down: %q", left)
	}
	zkagent(`zkagent rollout status /config/web`, 0)
	if err := os.Remove(filepath.Join(last.dir, "full")); err != nil {
		t.Fatal(err)
	}
	reloads(false)()
	zkagent(`zkagent rollout retry /config/web`, 0, sessionStep{" roll     " + halfBar + "  1/2  1 at a time", reloads(true)})
	reloads(false)()
	zkagent(`zkagent rollout undo /config/web -m "slow pages"`, 0, sessionStep{" roll     " + emptyBar + "  0/2  2 at a time", reloads(true)})
	compareSession(t, tr.text.String())
}

// passing are the lines that depend on the load: those of a vote, which can be over before
// a slow reader sees it, and of a connection that takes a second.
var passing = regexp.MustCompile(`(?m)^(/config/web: (phase voting|decision commit)| vote .*|waiting for ZooKeeper .*)\n`)

// compareSession compares a transcript with the block of docs/fleet.md that follows
// the name of this file.
func compareSession(t *testing.T, got string) {
	t.Helper()
	const page = "../../docs/fleet.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "<!-- run by: cmd/zkagent/rollout_session_test.go -->\n\n```\n")
	want, tail, closed := strings.Cut(rest, "```\n")
	switch {
	case !ok || !closed:
		t.Fatalf("%s has no block for the session", page)
	case *update:
		if err := os.WriteFile(page, []byte(strings.TrimSuffix(string(text), want+"```\n"+tail)+got+"```\n"+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	case passing.ReplaceAllString(got, "") != passing.ReplaceAllString(want, ""):
		t.Errorf("%s shows another session (-update writes it):\n%s", page, got)
	}
}
