package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

type execOptions struct {
	prefixes []string
	allowed  []string // variables that could run code
	pristine bool
	upcase   bool
	sanitize bool
}

func newExecCommand(g *globals) *cobra.Command {
	var o execOptions
	c := &cobra.Command{
		Use:   "exec --prefix CONFIG[/KEY]... -- CMD [ARG...]",
		Short: "Run a command with environment variables from keys",
		Long: `Read keys and run a command that has them as environment variables: KEY=value
for each key below a prefix. The part of the path after the prefix is the name. CONFIG is a
config block of the settings, or a znode path that is a config tree. Of several
prefixes that give one variable, the last wins.

zkagent becomes the command: signals, input and exit code are the command's own.
The command keeps its variables when a key changes. An exec block of the agent's
settings restarts its program on a change, or sends it a signal.`,
		Example: "  zkagent exec --prefix web/env --upcase -- ./server\n  zkagent exec --prefix /config/web --pristine --sanitize -- env",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			before, command := commandAfter(args, c.ArgsLenAtDash())
			if len(before) > 0 || len(command) == 0 {
				return usagef("exec takes \"--\" and a command")
			}
			if len(o.prefixes) == 0 {
				return usagef("exec needs --prefix CONFIG or --prefix CONFIG/KEY")
			}
			return execCommand(c.Context(), g, command, o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.prefixes, "prefix", nil, "config, or config and key, whose keys become variables; may be given more than once")
	f.StringArrayVar(&o.allowed, "allow-env", nil, "variable that a key may set although it can run code (PATH, LD_PRELOAD, BASH_ENV, ...); may be given more than once")
	f.BoolVar(&o.pristine, "pristine", false, "start with an empty environment")
	f.BoolVar(&o.upcase, "upcase", false, "names in upper case")
	f.BoolVar(&o.sanitize, "sanitize", false, "replace what is not a letter, a digit or _ by _ in names")
	return c
}

func execCommand(ctx context.Context, g *globals, command []string, o execOptions) error {
	env := []string{}
	if !o.pristine {
		env = os.Environ()
	}
	err := g.withSession(ctx, func(ctx context.Context, s *session.Session, c *agent.Config) error {
		for _, p := range o.prefixes {
			tree, prefix, err := execTree(ctx, g, s, c, p)
			if err != nil {
				return err
			}
			vars, err := o.variables(tree, prefix)
			if err != nil {
				return err
			}
			for _, v := range vars {
				name, _, _ := strings.Cut(v, "=")
				env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
				env = append(env, v)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return become(command, env)
}

// execTree reads the tree of a prefix: a znode path, or the name of a config
// block and a key.
func execTree(ctx context.Context, g *globals, s *session.Session, c *agent.Config, prefix string) (*view.Tree, string, error) {
	cfg, key := config.Config{Name: prefix, Path: strings.TrimSuffix(prefix, "/")}, ""
	if !strings.HasPrefix(prefix, "/") {
		var name string
		name, key, _ = strings.Cut(strings.TrimSuffix(prefix, "/"), "/")
		i := -1
		if c != nil {
			i = slices.IndexFunc(c.Configs, func(x config.Config) bool { return x.Name == name })
		}
		if i < 0 {
			return nil, "", fail(exitUsage, fmt.Errorf("--prefix %s: the settings have no config %q", prefix, name), "name the settings by --config, or give a path as in /config/web")
		}
		cfg = c.Configs[i]
	}
	src := view.Source{Kind: view.KindConfig, Name: cfg.Name}
	v, err := gatherSources(ctx, g, s, view.View{}, []follower{{src, trees.ReadyPath(cfg.Path), config.NewWatcher(cfg).Run}})
	if err != nil {
		return nil, "", fmt.Errorf("--prefix %s: %w", prefix, err)
	}
	tree, _ := v.Tree(cfg.Name)
	return tree, key, nil
}

var notVariable = regexp.MustCompile(`[^A-Za-z0-9_]`)

// variables returns the keys below a prefix as NAME=value. A key that cannot be a
// variable is an error.
func (o execOptions) variables(tree *view.Tree, prefix string) ([]string, error) {
	var list []string
	var bad error
	tree.Walk(prefix, func(path string, k view.Key) bool {
		name := strings.TrimPrefix(strings.TrimPrefix(path, prefix), "/")
		if name == "" {
			name = path[strings.LastIndexByte(path, '/')+1:] // the prefix is a key itself
		}
		if o.sanitize {
			name = notVariable.ReplaceAllString(name, "_")
		}
		if o.upcase {
			name = strings.ToUpper(name)
		}
		switch {
		case strings.ContainsAny(name, "=\x00"):
			bad = fmt.Errorf("key %q cannot be the name of a variable; --sanitize makes it one", path)
		case proc.RunsCode(name) && !slices.Contains(o.allowed, name):
			bad = fmt.Errorf("key %q sets %s, which lets the writer of the key run code; --allow-env %s permits it", path, name, name)
		case strings.ContainsRune(string(k.Value), 0):
			bad = fmt.Errorf("the value of key %q holds a zero byte, which no variable can", path)
		}
		list = append(list, name+"="+string(k.Value))
		return bad == nil
	})
	return list, bad
}
