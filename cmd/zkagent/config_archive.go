package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// newConfigExportCommand writes a tree to a directory or an archive.
func newConfigExportCommand(g *globals) *cobra.Command {
	var version versionFlag
	c := &cobra.Command{
		Use: "export NAME|PATH [DIR]", Short: "Write a config into a new directory, or as a tar archive to standard output", Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				tree, err := readTree(ctx, s, t, int64(version))
				if err != nil {
					return err
				}
				if len(args) == 2 {
					if err = config.WriteDir(args[1], tree); err == nil {
						g.Say("%s: wrote %s of %s into %s", t.name, term.Count(tree.Len(), "key"), generation(tree.Layout, tree.Generation), args[1])
					}
					return err
				}
				if term.IsTerminal(g.Out) {
					return usagef("an archive is not written to a terminal; name a directory, or redirect")
				}
				return config.WriteTar(g.Out, tree)
			})
		},
	}
	c.Flags().Var(&version, "version", "an older version instead of the one in use")
	return c
}

func newConfigImportCommand(g *globals) *cobra.Command {
	var p publishFlags
	var pipe pipeline
	c := &cobra.Command{
		Use: "import FILE.tar|- NAME|PATH", Short: "Publish an archive that export wrote", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := pipe.check(c); err != nil {
				return err
			}
			return withConfig(c.Context(), g, args[1], func(ctx context.Context, s *session.Session, t target) error {
				cfg, err := p.config(g, c, t)
				if err != nil {
					return err
				}
				if cfg.Keys, err = readArchive(&g.Console, args[0]); err != nil {
					return err
				}
				return sendPipeline(ctx, g, s, t, cfg, &pipe)
			})
		},
	}
	p.add(c)
	pipe.add(c)
	return c
}

func readArchive(console *term.Console, name string) (map[string][]byte, error) {
	if name == "-" {
		return config.ReadTar(console.In)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return config.ReadTar(f)
}
