package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/template"
)

// explainUsage adds to every usage error how to use the command, and which command
// or flag the user may have meant.
func explainUsage(root *cobra.Command) {
	root.DisableSuggestions = true // ours are for every level
	root.SetFlagErrorFunc(usageError)
	root.SetUsageTemplate(usageTemplate)
	explainArgs(root)
}

func explainArgs(c *cobra.Command) {
	for _, child := range c.Commands() {
		explainArgs(child)
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err == nil {
			return nil
		}
		unknown := len(args) > 0 && strings.HasPrefix(err.Error(), "unknown command")
		switch {
		case unknown && c.HasSubCommands():
			err = fmt.Errorf("%s has no command %q%s", c.CommandPath(), args[0], meant(c, args[0]))
		case unknown:
			err = fmt.Errorf("%s takes no arguments, but got %q", c.CommandPath(), args[0])
		}
		return usageError(c, err)
	}
}

// meant names the command that the user may have meant.
func meant(c *cobra.Command, word string) string {
	for _, sub := range c.Commands() {
		if slices.Contains(sub.SuggestFor, word) {
			return fmt.Sprintf("; did you mean %q?", sub.CommandPath())
		}
	}
	names := namesOf(c.Commands(), func(sub **cobra.Command) string { return (*sub).Name() })
	if name := template.Nearest(word, names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}

// listLimit is how many names an error lists.
const listLimit = 10

// listed are the names that exist, for an error about one that does not: those that
// the user may have meant come first.
func listed(name string, names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Sorted(slices.Values(names))
	if i := slices.Index(names, template.Nearest(name, names)); i > 0 {
		best := names[i]
		copy(names[1:], names[:i])
		names[0] = best
	}
	if len(names) > listLimit {
		return fmt.Sprintf("%s, and %d more", strings.Join(names[:listLimit], ", "), len(names)-listLimit)
	}
	return strings.Join(names, ", ")
}

// usageError is wrong usage of c.
func usageError(c *cobra.Command, err error) error {
	if e, ok := errors.AsType[*cliError](err); ok {
		return e
	}
	err = meantFlag(c, err)
	hint := fmt.Sprintf("see \"%s --help\"", c.CommandPath())
	if c.Runnable() && !c.HasSubCommands() {
		hint = strings.TrimSuffix(c.UseLine(), " [flags]") + "; " + hint
	}
	return fail(exitUsage, err, hint)
}
