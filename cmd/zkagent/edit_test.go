package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// inMemory starts a ZooKeeper in memory; the result is its address and a session.
func inMemory(t *testing.T) (string, *session.Session) {
	t.Helper()
	_, addr, s := inMemoryServer(t)
	return addr, s
}

// inMemoryServer is inMemory, with the server for tests that give it faults.
func inMemoryServer(t *testing.T) (*memzk.Server, string, *session.Session) {
	t.Helper()
	server := memzk.New(memzk.Options{})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{addr.String()}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return server, addr.String(), s
}

// desk is where somebody edits /config/web.
type desk struct {
	t   *testing.T
	s   *session.Session
	env []string
	tmp string
}

// newDesk publishes a config of two keys and makes an editor of a shell script.
func newDesk(t *testing.T, editor string) *desk {
	t.Helper()
	addr, s := inMemory(t)
	d := &desk{t: t, s: s, tmp: t.TempDir()}
	name := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+editor+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.env = []string{"ZKAGENT_ZK=" + addr, "VISUAL=", "EDITOR=" + name, "TMPDIR=" + d.tmp, "NO_COLOR="}
	d.publish("10s")
	return d
}

// publish is somebody else's publish.
func (d *desk) publish(timeout string) {
	d.t.Helper()
	keys := map[string][]byte{"timeout": []byte(timeout), "color": []byte("blue")}
	if _, err := fleet.Publish(context.WithoutCancel(d.t.Context()), d.s, fleet.PublishConfig{Path: "/config/web", Keys: keys}); err != nil {
		d.t.Fatal(err)
	}
}

// edit begins to edit the key timeout.
func (d *desk) edit(args ...string) *terminal {
	d.t.Helper()
	return onTerminal(d.t, 80, d.env, append([]string{"config", "edit", "/config/web", "timeout", "--session-timeout", "40s"}, args...)...)
}

// inUse checks the version and the key in use.
func (d *desk) inUse(version int64, timeout string) {
	d.t.Helper()
	value, got, err := config.Lookup(d.t.Context(), d.s, "/config/web", "timeout")
	if err != nil || string(value) != timeout || got != version {
		d.t.Errorf("got %q of version %d, %v; want %q of version %d", value, got, err, timeout, version)
	}
}

// kept checks what is left of an edit that was not published; empty: nothing.
func (d *desk) kept(want string) {
	d.t.Helper()
	names, err := filepath.Glob(filepath.Join(d.tmp, "zkagent-edited-*-timeout"))
	if err != nil {
		d.t.Fatal(err)
	}
	var got string
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			d.t.Fatal(err)
		}
		got += string(data)
	}
	if got != want {
		d.t.Errorf("kept is %q in %d files, want %q", got, len(names), want)
	}
}

const to30s = `printf 30s >"$1"`

// The editor has the terminal; the difference is shown in colour; yes publishes.
func TestEdit_TerminalYes(t *testing.T) {
	t.Parallel()
	d := newDesk(t, `printf 'type: '; read -r line; printf %s "$line" >"$1"`)
	x := d.edit("-m", "by hand")
	x.await("type: ")
	x.send("45s\n")
	x.await("publish this? [y/N] ")
	d.inUse(1, "10s")
	x.send("y\n")
	out := x.end(0)
	shows(t, out, "\x1b[31m-10s\x1b[0m\n", "\x1b[32m+45s\x1b[0m\n", "/config/web: published v2, 2 keys, 1 change\n")
	d.inUse(2, "45s")
	d.kept("")
}

// Anything but yes publishes nothing, and keeps what was edited.
func TestEdit_TerminalNo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys string
		code int
		want string
	}{
		"no":          {"n\n", 1, "error: not confirmed, nothing was changed\n"},
		"enter":       {"\n", 1, "error: not confirmed, nothing was changed\n"},
		"end":         {"\x04", 1, "error: not confirmed, nothing was changed\n"},
		"interrupted": {"\x03", 130, "your edit is kept in "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, to30s)
			x := d.edit()
			x.await("publish this? [y/N] ")
			x.send(c.keys)
			if out := plain(x.end(c.code)); !strings.Contains(out, c.want) || !strings.Contains(out, "your edit is kept in ") {
				t.Errorf("got\n%s", out)
			}
			d.inUse(1, "10s")
			d.kept("30s")
		})
	}
}

// An editor that fails, or changes nothing, publishes nothing and asks nothing.
func TestEdit_TerminalNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		editor string
		code   int
		want   string
	}{
		"fails":   {to30s + "; exit 3", 1, ": exit status 3\n"},
		"removes": {`rm "$1"`, 1, "no such file"},
		"same":    {`printf 10s >"$1"`, 0, "nothing changed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, c.editor)
			if out := d.edit().end(c.code); !strings.Contains(out, c.want) || strings.Contains(out, "publish this?") {
				t.Errorf("got\n%s", out)
			}
			d.inUse(1, "10s")
			d.kept("")
		})
	}
}

// Somebody else publishes while the question stands: theirs stays.
func TestEdit_TerminalMeanwhile(t *testing.T) {
	t.Parallel()
	d := newDesk(t, to30s)
	x := d.edit()
	x.await("publish this? [y/N] ")
	d.publish("20s")
	x.send("y\n")
	out := plain(x.end(75))
	shows(t, out, "version 1 was expected, 2 is in use\n", "hint: another publisher was faster", "your edit is kept in ")
	d.inUse(2, "20s")
	d.kept("30s")
}

// After a "no", every command that asks fails, so that a script does not continue.
func TestConfirm_No(t *testing.T) {
	t.Parallel()
	d := newDesk(t, to30s)
	for _, args := range [][]string{
		{"zk", "create", "/other"}, {"zk", "acl", "set", "/config", "world:anyone:r"}, {"queue", "purge", "mails"}, {"config", "delete", "/config/web"},
	} {
		x := onTerminal(t, 80, d.env, args...)
		x.await("[y/N] ")
		x.send("n\n")
		shows(t, plain(x.end(1)), "error: not confirmed, nothing was changed\n")
	}
	d.inUse(1, "10s")
}

// Somebody publishes a config while the question stands: its znodes stay.
func TestConfirm_ManagedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"zk", "set", "/site/port", "81"}, {"zk", "create", "/site/host"}, {"zk", "rm", "/site/port"}} {
		d := newDesk(t, to30s)
		for _, path := range []string{"/site", "/site/port"} {
			if _, _, err := d.s.Create(t.Context(), path, []byte("80"), session.Persistent); err != nil {
				t.Fatal(err)
			}
		}
		x := onTerminal(t, 80, d.env, args...)
		x.await("[y/N] ")
		if _, _, err := d.s.Create(t.Context(), "/site/ready", nil, session.Persistent); err != nil {
			t.Fatal(err)
		}
		x.send("y\n")
		shows(t, plain(x.end(1)), "belongs to the config /site")
		if data, _, err := d.s.Get(t.Context(), "/site/port"); err != nil || string(data) != "80" {
			t.Errorf("%v: got %q, %v", args, data, err)
		}
	}
}

// An emergency is confirmed by the config's name, and by nothing shorter.
func TestEmergency_Terminal(t *testing.T) {
	t.Parallel()
	d := newDesk(t, to30s)
	const prompt = `all hosts change at once. Type "/config/web" to continue: `
	for _, c := range []struct {
		keys    string
		code    int
		version int64
		timeout string
	}{{"yes\n", 1, 1, "10s"}, {"\x03", 130, 1, "10s"}, {"/config/web\n", 0, 2, "30s"}} {
		x := d.edit("--emergency")
		x.await("publish this? [y/N] ")
		x.send("y\n")
		x.await(prompt)
		x.send(c.keys)
		x.end(c.code)
		d.inUse(c.version, c.timeout)
	}
}
