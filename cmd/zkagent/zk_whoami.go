package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

type identityRow struct {
	Scheme      string `json:"scheme,omitempty"`
	ID          string `json:"id,omitempty"`
	Path        string `json:"path,omitempty"`
	Permissions string `json:"permissions,omitempty"`
}

func newWhoAmICommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "whoami [PATH]...",
		Short:   "Say which identities ZooKeeper sees, and what they may do",
		Example: "  zkagent zk whoami\n  zkagent zk whoami /services/web /config/web",
		RunE: func(c *cobra.Command, args []string) error {
			for _, path := range args {
				if err := session.ValidatePath(path); err != nil {
					return fail(exitUsage, err)
				}
			}
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
				rows, err := identityRows(ctx, s, args)
				if err != nil {
					return err
				}
				if g.IsJSON() {
					return term.PrintList(&g.Console, "identities", rows)
				}
				for _, r := range rows {
					line := r.Scheme + ":" + r.ID
					if r.Path != "" {
						line = r.Path + ": " + cmp.Or(r.Permissions, "nothing")
					}
					g.Printf("%s\n", term.Printable(line))
				}
				return g.Failed()
			})
		},
	}
}

// identityRows asks for the identities and, with paths, what they may do there.
func identityRows(ctx context.Context, s *session.Session, paths []string) ([]identityRow, error) {
	ids, err := s.WhoAmI(ctx)
	if errors.Is(err, session.ErrUnimplemented) {
		return nil, fmt.Errorf("the server is older than ZooKeeper 3.7 and cannot say it: %w", err)
	}
	if err != nil {
		return nil, err
	}
	var rows []identityRow
	for _, i := range ids {
		rows = append(rows, identityRow{Scheme: i.Scheme, ID: i.ID})
	}
	for _, path := range paths {
		acl, _, err := s.GetACL(ctx, path)
		if err != nil && !errors.Is(err, session.ErrNoAuth) {
			return nil, hintNearby(ctx, s, path, err)
		}
		rows = append(rows, identityRow{Path: path, Permissions: session.FormatPermissions(s.Permissions(acl, ids))})
	}
	return rows, nil
}
