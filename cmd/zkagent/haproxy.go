package main

import (
	"cmp"
	"context"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/haproxy"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

func newHAProxyCommand(g *globals) *cobra.Command {
	var backend haproxy.Backend
	var once bool
	c := &cobra.Command{
		Use:   "haproxy --socket SOCKET --backend BACKEND GROUP|PATH",
		Short: "Update the servers of a HAProxy backend from a group, without a reload",
		Long: `Put the members of a group into the server slots of a HAProxy backend through
HAProxy's runtime API, now and at each change. The backend needs slots:

    backend web
      server-template slot 20 127.0.0.1:1 disabled

and HAProxy a socket of level admin (stats socket /run/haproxy/admin.sock level
admin). A member keeps its slot while it stays. A draining member drains; the
slot of a member that is gone, down or in maintenance is in maintenance. The
command reads HAProxy's slots every 10 s and fills them again after a restart of
HAProxy. While ZooKeeper cannot be reached, HAProxy keeps its servers.

GROUP is a group block of the settings, with its guard and filters; PATH is the
znode of a group.`,
		Example: `  zkagent haproxy --socket /run/haproxy/admin.sock --backend web web
  zkagent haproxy --socket /run/haproxy/admin.sock --backend web --once /services/web`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := haproxy.CheckName(backend.Name); err != nil {
				return fail(exitUsage, err, "name it by --backend")
			}
			if backend.Socket == "" {
				return usagef("--socket is missing: the path of HAProxy's stats socket")
			}
			return followHAProxy(c.Context(), g, args[0], backend, once)
		},
	}
	c.Flags().StringVar(&backend.Socket, "socket", "", "path of HAProxy's stats socket, which must have the level admin (required)")
	c.Flags().StringVar(&backend.Name, "backend", "", "name of the backend in HAProxy's settings (required)")
	c.Flags().BoolVar(&once, "once", false, "set the members once and exit; by default, follow the group")
	return c
}

// followHAProxy follows the group, over sessions, and applies its members.
func followHAProxy(ctx context.Context, g *globals, name string, backend haproxy.Backend, once bool) error {
	zk, conf, err := g.zkConfig()
	if err != nil {
		return err
	}
	group := registry.GroupConfig{Name: name, Path: name}
	if !strings.HasPrefix(name, "/") {
		if group, err = groupNamed(conf, name); err != nil {
			return err
		}
		group.Logger = conf.Logger
	} else if err := session.ValidatePath(name); err != nil {
		return fail(exitUsage, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	lists := make(chan []view.Member, 1)
	members := registry.NewGroup(group)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		cancel(session.Each(ctx, zk, func(ctx context.Context, s *session.Session) error {
			source := view.Source{Kind: view.KindGroup, Name: name}
			if err := readable(ctx, s, []follower{{source: source, path: group.Path}}); err != nil {
				return err
			}
			return members.Run(ctx, s, func(grp *view.Group) {
				if grp.Missing { // without the group's znode its members are unknown
					return
				}
				select {
				case <-lists: // those that nobody has taken
				default:
				}
				lists <- grp.Members
			})
		}))
	})
	if once {
		return haproxyOnce(ctx, g, backend, lists)
	}
	backend.Follow(ctx, lists, haproxyDone(&g.Console, &backend))
	return context.Cause(ctx)
}

func haproxyOnce(ctx context.Context, g *globals, b haproxy.Backend, lists <-chan []view.Member) error {
	ctx, cancel := g.patience(ctx, cmp.Or(g.timeout, oneShot))
	defer cancel()
	defer g.awaiting("waiting for the members of the group; --timeout ends it")()
	select {
	case members := <-lists:
		r, err := b.Apply(ctx, members)
		if err == nil {
			haproxyDone(&g.Console, &b)(r, nil)
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func haproxyDone(console *term.Console, b *haproxy.Backend) func(haproxy.Result, error) {
	return func(r haproxy.Result, err error) {
		if err != nil {
			console.Say("%v", err)
			return
		}
		console.Say("backend %s: %d servers take traffic, %d commands", b.Name, r.Ready, r.Commands)
		if len(r.Left) > 0 {
			console.Say("%d members have no slot or no address: %s", len(r.Left), term.First(r.Left, 10))
		}
	}
}
