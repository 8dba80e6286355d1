package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pseudo terminal is two system calls on Linux; a library for it would be one
// more thing to look after.

// openPTY returns both ends of a new pseudo terminal of so many columns.
func openPTY(t *testing.T, columns uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if err = unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// terminal is a zkagent that somebody uses on a terminal.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	read   sync.WaitGroup

	mu    sync.Mutex // guards what follows
	out   bytes.Buffer
	ended bool
	news  chan struct{} // closed when there is more
}

// onTerminal starts zkagent on a terminal of its own. It ends with the test.
func onTerminal(t *testing.T, columns uint16, env []string, args ...string) *terminal {
	t.Helper()
	return onTerminalIn(t, "", columns, env, args...)
}

// onTerminalIn is onTerminal in a directory.
func onTerminalIn(t *testing.T, dir string, columns uint16, env []string, args ...string) *terminal {
	t.Helper()
	master, slave := openPTY(t, columns)
	x := &terminal{t: t, master: master, news: make(chan struct{}), cmd: exec.Command("zkagent", args...)}
	x.cmd.Env = append(append(os.Environ(), "TERM=xterm"), env...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.Dir = dir
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := x.cmd.Start()
	_ = slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	x.read.Go(x.copy)
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill() // of one that has ended already: no effect
		x.read.Wait()
		_ = master.Close()
	})
	return x
}

// copy keeps what is shown, until the other end is closed.
func (x *terminal) copy() {
	buf := make([]byte, 4096)
	for {
		n, err := x.master.Read(buf)
		x.mu.Lock()
		x.out.Write(buf[:n])
		x.ended = err != nil
		close(x.news)
		x.news = make(chan struct{})
		x.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// shown is all that was shown until now, with plain line ends.
func (x *terminal) shown() (string, bool, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.ReplaceAll(x.out.String(), "\r\n", "\n"), x.ended, x.news
}

// await waits until what is shown contains the text.
func (x *terminal) await(text string) {
	x.t.Helper()
	x.awaitMatch(regexp.MustCompile(regexp.QuoteMeta(text)))
}

// awaitMatch waits until what is shown matches.
func (x *terminal) awaitMatch(want *regexp.Regexp) {
	x.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		out, ended, news := x.shown()
		switch {
		case want.MatchString(out):
			return
		case ended:
			x.t.Fatalf("ended without %q:\n%s", want, out)
		}
		select {
		case <-news:
		case <-timer.C:
			x.t.Fatalf("waited in vain for %q:\n%s", want, out)
		}
	}
}

// send types.
func (x *terminal) send(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.master, keys); err != nil {
		x.t.Fatal(err)
	}
}

// end waits for the end, checks the exit code, and returns all that was shown.
func (x *terminal) end(want int) string {
	x.t.Helper()
	timer := time.AfterFunc(limit, func() { _ = x.cmd.Process.Kill() })
	defer timer.Stop()
	err := x.cmd.Wait()
	x.read.Wait()
	out, _, _ := x.shown()
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else if err != nil {
		x.t.Fatal(err)
	}
	if got != want {
		x.t.Fatalf("got exit code %d, want %d; shown:\n%s", got, want, out)
	}
	return out
}

// colors are the sequences that colour a word.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// plain is a text without colours.
func plain(s string) string { return colors.ReplaceAllString(s, "") }

// shows wants every text in what a terminal has shown.
func shows(t *testing.T, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%q", want, out)
		}
	}
}
