// Package docs_test keeps the pages true: the commands that they show are run,
// settings are valid, flags exist, links lead somewhere.
package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// limit bounds the commands of one page, which may wait for events.
const limit = 5 * time.Minute

var binary string

func TestMain(m *testing.M) {
	var err error
	if binary, err = zktest.Zkagent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testhelp.Economy()
	os.Exit(m.Run())
}

// pages returns every page for people: the README and what is below docs.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../*.md", "*.md", "reference/*.md", "adr/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) < 10 {
		t.Fatalf("got only the pages %q", all)
	}
	return all
}

// block is fenced or indented text of a page.
type block struct {
	line  int
	kind  string // what stands behind the fence; "indented" for an indented block
	lines []string
}

// blocks splits a page.
func blocks(text string) []block {
	var list []block
	var open *block
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "```") && fenced:
			list, open, fenced = append(list, *open), nil, false
		case strings.HasPrefix(line, "```"):
			open, fenced = &block{line: i + 1, kind: strings.TrimPrefix(line, "```")}, true
		case fenced:
			open.lines = append(open.lines, line)
		case strings.HasPrefix(line, "    "):
			if open == nil {
				open = &block{line: i + 1, kind: "indented"}
			}
			open.lines = append(open.lines, line[4:])
		case open != nil:
			list, open = append(list, *open), nil
		}
	}
	return list
}

// TestCommands runs the console blocks of each page, top to bottom, in one
// shell with a ZooKeeper of their own. Lines with "$ " are commands; the others
// must come in the output in that order, where "..." stands for anything.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		text := read(t, page)
		if !strings.Contains(text, "```console") {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			runPage(t, page, blocks(text))
		})
	}
}

func runPage(t *testing.T, page string, list []block) {
	server := memzk.New(memzk.Options{TickTime: 500 * time.Millisecond})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	short, err := os.MkdirTemp("", "zkd-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	script, want := pageScript(list)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = short
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH")+":/usr/sbin",
		"ZKAGENT_ZK="+addr.String(), "ZK="+addr.String(), "ZKAGENT_ADDR="+filepath.Join(short, "s"), "NO_COLOR=1",
		"ZKAGENT_CONFIG=", "TMPDIR="+short, "HOME="+short, "STATE_DIRECTORY="+filepath.Join(short, "state"), "RUNTIME_DIRECTORY="+short)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v; the commands and their output:\n%s", page, err, out.String())
	}
	compare(t, page, want, out.String())
}

// expected is the output that the page shows for one command.
type expected struct {
	line    int
	command string
	output  []string
}

// pageScript makes one script of a page: files of named blocks are written,
// commands are run one after the other, background jobs end with it.
func pageScript(list []block) (string, []expected) {
	var b strings.Builder
	var want []expected
	b.WriteString(`set -euo pipefail
mkdir -p "$STATE_DIRECTORY"
trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT
until_() { for _ in $(seq 900); do if eval "$*" >/dev/null 2>&1; then return 0; fi; sleep 0.1; done; echo "waited for: $*"; return 1; }
`)
	for _, bl := range list {
		if _, file, ok := strings.Cut(bl.kind, "file="); ok {
			fmt.Fprintf(&b, "mkdir -p \"$(dirname %s)\"\ncat >%s <<'END_OF_FILE'\n%s\nEND_OF_FILE\n", file, file, strings.Join(bl.lines, "\n"))
		}
		if bl.kind != "console" {
			continue
		}
		for i := 0; i < len(bl.lines); i++ {
			command, ok := strings.CutPrefix(bl.lines[i], "$ ")
			if !ok {
				if n := len(want); n > 0 && strings.TrimSpace(bl.lines[i]) != "" {
					want[n-1].output = append(want[n-1].output, bl.lines[i])
				}
				continue
			}
			line := bl.line + 1 + i
			for strings.HasSuffix(command, `\`) && i+1 < len(bl.lines) {
				i++
				command += "\n" + bl.lines[i]
			}
			want = append(want, expected{line: line, command: command})
			fmt.Fprintf(&b, "echo '\x1e'\n%s\n", command)
		}
	}
	return b.String(), want
}

// compare looks for the lines of each command in its output.
func compare(t *testing.T, page string, want []expected, out string) {
	got := strings.Split(out, "\x1e\n")[1:]
	if len(got) != len(want) {
		t.Fatalf("%s: got %d outputs, want %d:\n%s", page, len(got), len(want), out)
	}
	for i, w := range want {
		lines := strings.Split(got[i], "\n")
		for _, line := range w.output {
			form := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " ")), `\.\.\.`, ".*") + "$")
			for len(lines) > 0 && !form.MatchString(strings.TrimRight(lines[0], " ")) {
				lines = lines[1:]
			}
			if len(lines) == 0 {
				t.Errorf("%s:%d: %s\ngot\n%s\nwant a line %q", page, w.line, w.command, got[i], line)
				break
			}
			lines = lines[1:]
		}
	}
}

// TestSettings: every block of settings in the pages is valid.
func TestSettings(t *testing.T) {
	for _, page := range pages(t) {
		for _, bl := range blocks(read(t, page)) {
			kind, _, _ := strings.Cut(bl.kind, " ")
			if kind != "hcl" || slices.Contains(strings.Fields(bl.kind), "part") {
				continue
			}
			file := filepath.Join(t.TempDir(), "zkagent.hcl")
			if err := os.WriteFile(file, []byte(strings.Join(bl.lines, "\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), binary, "validate", "--quiet", file)
			cmd.Env = append(os.Environ(), "CREDENTIALS_DIRECTORY="+credentials(t))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: settings: %v\n%s", page, bl.line, err, out)
			}
		}
	}
}

// credentials is a directory with the secrets that pages mention.
func credentials(t *testing.T) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "zk-auth"), []byte("agent:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

var ends = regexp.MustCompile(`\s+(#|\||\d?>|<|&|--(\s|$)).*$`)

// TestFlags: the commands and flags of indented lines exist. With --help as
// the last word, a command line is parsed and not run.
func TestFlags(t *testing.T) {
	for _, page := range pages(t) {
		if strings.HasSuffix(page, "reference/cli.md") {
			continue // made of the commands themselves
		}
		for _, bl := range blocks(read(t, page)) {
			if bl.kind != "indented" && bl.kind != "sh" && bl.kind != "console" {
				continue
			}
			for i, line := range bl.lines {
				line = strings.TrimPrefix(line, "$ ")
				if !strings.HasPrefix(line, "zkagent ") || strings.Contains(line, " | ") || strings.HasSuffix(line, `\`) || strings.Contains(line, "|") {
					continue
				}
				cmd := exec.CommandContext(t.Context(), "bash", "-c", ends.ReplaceAllString(line, "")+" --help")
				cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s:%d: %s: %v\n%s", page, bl.line+i, line, err, out)
				}
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	slugOut = regexp.MustCompile("[^a-z0-9 _-]")
)

// TestLinks: links to files of the repository lead somewhere.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
				continue
			}
			if anchor != "" && !anchors(read(t, file))[anchor] {
				t.Errorf("%s: link to %s: no such heading", page, m[1])
			}
		}
	}
}

// anchors are the names that headings get.
func anchors(text string) map[string]bool {
	set := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		set[strings.ReplaceAll(slugOut.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return set
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
