package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// A block of commands that is not a console block says what becomes of it, in a
// comment right before it:
//
//	<!-- run by: FILE FILE -->   tests of the repository that run the same commands
//	<!-- not run: REASON -->     why no test can
var marker = regexp.MustCompile(`^<!-- (run by|not run): (.+) -->$`)

// commandLine is a line that a reader would type.
var commandLine = regexp.MustCompile(`^(zkagent|make|apt|apt-get|dpkg|systemctl|journalctl|editor|export|curl|podman|docker|go|git|nginx|runuser) `)

// TestBlocks: no block of commands goes without a test or a reason.
func TestBlocks(t *testing.T) {
	for _, page := range pages(t) {
		if strings.HasSuffix(page, "reference/cli.md") {
			continue // made of the commands themselves
		}
		lines := strings.Split(read(t, page), "\n")
		for _, bl := range blocks(read(t, page)) {
			kind, _, _ := strings.Cut(bl.kind, " ")
			shell := kind == "sh" || kind == "bash" || kind == "shell"
			if kind == "console" || bl.kind == pasteKind || bl.kind == buildKind || !shell && (kind != "indented" || !commandLine.MatchString(bl.lines[0])) {
				continue
			}
			mark := marker.FindStringSubmatch(above(lines, bl.line-1))
			switch {
			case mark == nil:
				t.Errorf("%s:%d: commands that nothing runs: make it a console block, or say why before it (%s)", page, bl.line, marker)
			case mark[1] == "run by":
				ranBy(t, page, bl, strings.Fields(mark[2]))
			case len(strings.Fields(mark[2])) < 2:
				t.Errorf("%s:%d: %q is not a reason", page, bl.line, mark[2])
			}
		}
	}
}

// above is the last line before a block that is not empty.
func above(lines []string, n int) string {
	for n--; n >= 0; n-- {
		if s := strings.TrimSpace(lines[n]); s != "" {
			return s
		}
	}
	return ""
}

// ranBy looks for each command of a block in the tests that are said to run it.
func ranBy(t *testing.T, page string, bl block, files []string) {
	t.Helper()
	var text strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join("..", f))
		if err != nil {
			t.Errorf("%s:%d: %v", page, bl.line, err)
			return
		}
		text.Write(data)
	}
	for i, line := range bl.lines {
		words := strings.Fields(line)
		if len(words) < 2 || !commandLine.MatchString(line) {
			continue
		}
		names := words[1:2]
		if len(words) > 2 && subcommand.MatchString(words[2]) && (words[1] == "config" || words[1] == "rollout" || words[1] == "import") {
			names = words[1:3]
		}
		plain, quoted := words[0]+" "+strings.Join(names, " "), `"`+strings.Join(names, `", "`)+`"`
		if !strings.Contains(text.String(), plain) && !strings.Contains(text.String(), quoted) {
			t.Errorf("%s:%d: %q is not in %q", page, bl.line+i, plain, files)
		}
	}
}

var subcommand = regexp.MustCompile(`^[a-z][a-z-]+$`)

var inlineBlock = regexp.MustCompile("`([a-z_]+(?: \"[a-z]+\")? \\{[^`]*\\})`")

// TestInlineSettings: a block of settings in the middle of a sentence can be
// parsed, too: one with several arguments does not fit into a line.
func TestInlineSettings(t *testing.T) {
	for _, page := range pages(t) {
		for i, line := range strings.Split(read(t, page), "\n") {
			for _, m := range inlineBlock.FindAllStringSubmatch(line, -1) {
				if !strings.Contains(m[1], "=") || strings.Contains(m[1], "...") {
					continue // a sketch
				}
				if _, diags := hclsyntax.ParseConfig([]byte(m[1]+"\n"), page, hcl.InitialPos); diags.HasErrors() {
					t.Errorf("%s:%d: %s: %v", page, i+1, m[1], diags)
				}
			}
		}
	}
}
