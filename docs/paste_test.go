package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// pasteKind marks a block that a reader pastes into a shell as it is. What follows
// it as "text" is what the reader sees: lines of the output, in that order, where
// "..." stands for anything.
const pasteKind = "sh paste"

// buildKind marks a block that builds the program in the source tree. TestPaste has
// the program already; TestClean runs the block.
const buildKind = "sh paste build"

// TestPaste runs such blocks as a paste does: every byte of them, one block after
// the other, in one clean shell that has nothing but the program, bash and the
// tools of every Debian.
func TestPaste(t *testing.T) { //nolint:tparallel // a page that is left out returns first
	t.Parallel()
	for _, page := range pages(t) {
		text := read(t, page)
		if !strings.Contains(text, "```"+pasteKind) {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			if filepath.Base(page) != "quickstart.md" {
				testhelp.OnlyAll(t, "each page starts its own processes")
			}
			t.Parallel()
			paste(t, page, blocks(text), nil)
		})
	}
}

// machine is one that has nothing of this one: TestClean makes it.
type machine struct {
	root string   // its root directory
	env  []string // of the shell that the blocks are pasted into
}

// paste runs the blocks of a page in one shell, on this machine when m is nil.
func paste(t *testing.T, page string, list []block, m *machine) {
	t.Helper()
	home, err := os.MkdirTemp("", "zkp-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	var script strings.Builder
	script.WriteString("cd\n")
	if m != nil {
		script.WriteString("cd zkagent\n")
	}
	var want []expected
	for _, bl := range list {
		switch text := strings.Join(bl.lines, "\n"); {
		case bl.kind == pasteKind, bl.kind == buildKind && m != nil:
			fmt.Fprintf(&script, "echo '\x1e'\n%s\n", text)
			want = append(want, expected{line: bl.line, command: text})
		case bl.kind == "text" && len(want) > 0:
			want[len(want)-1].output = bl.lines
		}
	}
	script.WriteString("kill $(jobs -p) 2>/dev/null; wait\n")
	shell := []string{"bash", "--noprofile", "--norc"}
	if m != nil {
		shell = append([]string{"chroot", m.root}, shell...)
	}
	input := script.String()
	if os.Geteuid() == 0 {
		// A network of its own: the ports that the page names are free there.
		shell = append([]string{"unshare", "--net", "bash", "-c", `ip link set lo up && exec "$@"`, "-"}, shell...)
	} else {
		addr := freeAddr(t)
		input = strings.ReplaceAll(input, "127.0.0.1:2181", addr)
		input = strings.ReplaceAll(input, "zkagent dev ", "zkagent dev --listen "+addr+" ")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell[0], shell[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = []string{"HOME=" + home, "PATH=" + filepath.Dir(binary) + ":/usr/bin:/bin:/usr/sbin:/sbin", "TMPDIR=" + home, "LANG=C.UTF-8"}
	logs := home
	if m != nil {
		cmd.Env = m.env
		logs = filepath.Join(m.root, "root", "try-zkagent")
	}
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Logf("%s: the shell ends with %v", page, err)
	}
	compare(t, page, want, out.String())
	if t.Failed() {
		log, _ := filepath.Glob(filepath.Join(logs, "*.log"))
		for _, f := range log {
			t.Logf("%s:\n%s", f, read(t, f))
		}
	}
}

// freeAddr is an address of loopback that was free a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
