package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/zkagent/zkagent/internal/settings"
)

func newManCommand(g *globals) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "man", Short: "Write the man pages", Args: cobra.NoArgs,
		Long: "Write a man page for each command and zkagent.hcl(5), the page of the\nsettings, into a directory; or the page of zkagent itself to standard output.",
		RunE: func(c *cobra.Command, _ []string) error {
			root, header := c.Root(), &doc.GenManHeader{Section: "1", Source: "zkagent", Manual: "zkagent"}
			root.DisableAutoGenTag = true
			root.Long += manExit()
			if dir == "" {
				return doc.GenMan(root, header, g.Out)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // man pages are for everybody
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "zkagent.hcl.5"), manSettings(), 0o644); err != nil { //nolint:gosec // man pages are for everybody
				return err
			}
			return doc.GenManTree(root, header, dir)
		},
	}
	c.Flags().StringVar(&dir, "directory", "", "where the pages are written")
	return c
}

// manExit is the section of the exit codes, in Markdown.
func manExit() string {
	var b strings.Builder
	b.WriteString("\n\n# EXIT STATUS\n\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "**%d**\n: %s\n\n", e.code, e.text)
	}
	b.WriteString("**126, 127, 128+n**\n: lock, elect and their kind: as a shell; otherwise the command's own code\n")
	return b.String()
}

// Rows of the tables in the reference of the settings: an argument, its type, default
// and meaning. A terminal is too narrow for a table.
var (
	argumentRow = regexp.MustCompile(`(?m)^\| (.*?) \| (.*?) \| +(.*?) *\| (.*) \|$`)
	tableHead   = regexp.MustCompile(`(?m)^\| (argument|block) .*\n\|-.*\n`)
)

// manSettings is zkagent.hcl(5), made of the reference of the settings.
func manSettings() []byte {
	_, text, _ := strings.Cut(settings.Reference(), "-->\n")
	text = argumentRow.ReplaceAllString(tableHead.ReplaceAllString(text, ""), "**$1** ($2; default: $3)\n: $4\n")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "; default: )", ")"), "\n## ", "\n# ")
	head := "% \"ZKAGENT.HCL\" \"5\" \"\" \"zkagent\" \"zkagent\"\n\n# NAME\n\nzkagent.hcl - settings of zkagent\n\n# DESCRIPTION\n"
	return md2man.Render([]byte(head + text + "\n# SEE ALSO\n\n**zkagent(1)**\n"))
}
