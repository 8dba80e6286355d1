package main

import (
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/template"
)

// newOptionsCommand shows the common flags, so that no other help has to.
func newOptionsCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "List the flags that every command takes",
		Example: `  zkagent options`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			g.Printf("Flags of every command:\n%s", c.Root().PersistentFlags().FlagUsages())
			return nil
		},
	}
}

// usageTemplate is cobra's, without the flags that every command takes.
const usageTemplate = `Usage:{{if and .Runnable (not (index .Annotations "parent"))}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{if eq .ID "first"}}{{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}
 {{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}} {{.Name}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .LocalNonPersistentFlags.HasAvailableFlags}}

Flags:
{{.LocalNonPersistentFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

"zkagent options" lists the flags that every command takes.{{if .HasAvailableSubCommands}}
"{{.CommandPath}} [command] --help" explains a command.{{end}}
`

var unknownFlag = regexp.MustCompile(`^unknown flag: --([a-z-]+)`)

// meantFlag names the flag that was perhaps meant.
func meantFlag(c *cobra.Command, err error) error {
	m := unknownFlag.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	best := template.Nearest(m[1], names)
	if best == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean %q?", err, "--"+best)
}
