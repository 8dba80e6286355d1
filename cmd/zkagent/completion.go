package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// shells are those that completion knows, with what writes their script.
var shells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
}

func newCompletionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print the completion script of a shell",
		Long: `Print the completion script of a shell. Configs, groups, elections, templates
and hooks are completed from the settings, hosts from ZooKeeper.`,
		ValidArgs: []string{"bash", "fish", "zsh"},
		Args:      cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			write := shells[args[0]]
			if write == nil {
				return fail(exitUsage, fmt.Errorf("there is no completion for %q", args[0]), "the shells are bash, zsh and fish")
			}
			return write(c.Root(), g.Out)
		},
	}
}
