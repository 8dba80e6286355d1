package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/internal/settings"
)

func newManCommand(g *globals) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "man", Short: "Write the man pages", Args: cobra.NoArgs,
		Long: "Write a man page for each command and zkagent.hcl(5), the page of the\nsettings, into a directory; or the page of zkagent itself to standard output.",
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				_, err := g.Out.Write(manPage(c.Root()))
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // man pages are for everybody
				return err
			}
			page := manSettings(settings.Reference())
			if err := os.WriteFile(filepath.Join(dir, "zkagent.hcl.5"), page, 0o644); err != nil { //nolint:gosec // man pages are for everybody
				return err
			}
			return writeMan(dir, c.Root())
		},
	}
	c.Flags().StringVar(&dir, "directory", "", "where the pages are written")
	return c
}

// writeMan writes the page of a command and of those below it.
func writeMan(dir string, c *cobra.Command) error {
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
	if err := os.WriteFile(filepath.Join(dir, name), manPage(c), 0o644); err != nil { //nolint:gosec // man pages are for everybody
		return err
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			if err := writeMan(dir, sub); err != nil {
				return err
			}
		}
	}
	return nil
}

// manPage is the page of one command in troff.
func manPage(c *cobra.Command) []byte {
	var b bytes.Buffer
	path := c.CommandPath()
	dashed := strings.ReplaceAll(path, " ", "-")
	_, _ = fmt.Fprintf(&b, ".TH %q 1 \"\" \"zkagent\" \"zkagent\"\n", strings.ToUpper(dashed))
	_, _ = fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", troff(dashed), troff(c.Short))
	_, _ = fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", troff(strings.TrimSuffix(c.UseLine(), " [flags]")+" [flags]"))
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	b.WriteString(".SH DESCRIPTION\n")
	for line := range strings.Lines(long) {
		switch line = strings.TrimRight(line, "\n"); {
		case line == "":
			b.WriteString(".PP\n")
		case strings.HasPrefix(line, "  "):
			b.WriteString(".br\n" + troff(strings.TrimSpace(line)) + "\n")
		default:
			b.WriteString(troff(line) + "\n")
		}
	}
	manCommands(&b, c)
	manFlags(&b, "OPTIONS", c.NonInheritedFlags())
	if c.HasInheritedFlags() {
		b.WriteString(".SH COMMON OPTIONS\nThe flags that every command takes stand in\n.BR zkagent (1).\n")
	}
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n" + troff(c.Example) + "\n.fi\n")
	}
	if !c.HasParent() {
		manExit(&b)
		b.WriteString(".SH SEE ALSO\n.BR zkagent.hcl (5)\n")
	}
	return b.Bytes()
}

func manCommands(b *bytes.Buffer, c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	b.WriteString(".SH COMMANDS\n")
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			_, _ = fmt.Fprintf(b, ".TP\n.B %s\n%s\n", troff(sub.Name()), troff(sub.Short))
		}
	}
}

func manFlags(b *bytes.Buffer, heading string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	_, _ = fmt.Fprintf(b, ".SH %s\n", heading)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			name += " " + value
		}
		_, _ = fmt.Fprintf(b, ".TP\n.B %s\n%s\n", troff(name), troff(usage))
	})
}

// manExit lists the exit codes.
func manExit(b *bytes.Buffer) {
	b.WriteString(".SH EXIT STATUS\n")
	for _, e := range exitCodes {
		_, _ = fmt.Fprintf(b, ".TP\n.B %d\n%s\n", e.code, troff(e.text))
	}
	b.WriteString(".TP\n.B 126, 127, 128+n\nlock, elect and their kind: as a shell; otherwise the command's own code\n")
}

// troff escapes what troff would read as its own.
func troff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
