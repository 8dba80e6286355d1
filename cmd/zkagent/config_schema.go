package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func newConfigSchemaCommand(g *globals) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "schema NAME|PATH", Short: "Show the JSON Schema of a config, and check the tree in use against it or another",
		Long: `Show the JSON Schema of a config, and check the tree in use against it. The
schema is the key .schema.json of the tree itself, so that plan, publish and
every vote check against the same one. --schema checks against a file instead,
before it is published. Exit 1 when the tree violates the schema.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				return checkSchema(ctx, &g.Console, s, t, file)
			})
		},
	}
	c.Flags().StringVar(&file, "schema", "", "check against this file")
	return c
}

func checkSchema(ctx context.Context, console *term.Console, s *session.Session, t target, file string) error {
	keys, _, err := keysInUse(ctx, s, t)
	if err != nil {
		return err
	}
	schema, own := keys[config.SchemaKey]
	switch {
	case file != "":
		if schema, err = os.ReadFile(file); err != nil {
			return err
		}
	case !own:
		return fail(exitFailed, fmt.Errorf("%s has no schema", t.name), "a key "+config.SchemaKey+" in the tree is one")
	}
	values := make(map[string]string, len(keys))
	for k, v := range keys {
		values[k] = string(v)
	}
	if err := config.CheckSchema(schema, view.TreeOf(t.name, t.path, values)); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	if file == "" {
		console.Printf("%s\n", bytes.TrimSuffix(schema, []byte("\n")))
	}
	console.Say("%s: the tree in use satisfies the schema", t.name)
	return nil
}
