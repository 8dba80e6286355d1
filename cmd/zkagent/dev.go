package main

import (
	"net"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/dev"
	"github.com/zkagent/zkagent/internal/settings"
)

const devListen = "127.0.0.1:2181"

// devFlags are the raw flags of dev, before parse turns them into options.
type devFlags struct {
	dev.Options

	members []string
	outage  string
	hooks   string
}

func newDevCommand(g *globals) *cobra.Command {
	var o devFlags
	c := &cobra.Command{
		Use: "dev [DIR|FILE]...", Short: "Try settings with a ZooKeeper in memory",
		Long: `Start a ZooKeeper in memory on loopback, and run an agent with your settings on it.
Without an argument, run a built-in example and explain each step.

The command prints members, leaders, hooks and the difference of every file as they
change. It fills the ZooKeeper from the directory "seed" next to the settings, and
reads settings and templates again when you edit them. Any ZooKeeper client can
connect. With --hosts 3 three agents run, as on three hosts.

All data are gone at the end. The command changes nothing on this host: it writes
rendered files below a new directory unless you give --in-place, and only prints the
commands of hooks and reloads unless you give --hooks run. It runs checks. If no
service listens at the address of a health check, a stand-in answers.`,
		RunE: func(c *cobra.Command, args []string) error {
			if g.IsJSON() {
				return usagef("dev talks to people: --output %s is not possible", g.Format)
			}
			if err := o.parse(c, args); err != nil {
				return err
			}
			// A closed terminal ends dev like Ctrl-C, so it cleans up.
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGHUP)
			defer stop()
			g.endWithReader(stop)
			o.Console, o.Version, o.Verbose = &g.Console, buildVersion(), g.verbose
			o.Load = func(paths []string, opts settings.Options) (*settings.Settings, error) {
				g.config = paths
				return g.loadSettings(opts)
			}
			return childOf(dev.Run(ctx, &o.Options))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Listen, "listen", devListen, "address of the ZooKeeper server; port 0 takes a free port")
	f.StringArrayVar(&o.members, "members", nil, "simulate members, as in web=5, where web is a group block or the path of a group; may be given more than once")
	f.DurationVar(&o.Churn, "churn", 0, "replace one simulated member by another each time this time has passed (default: never)")
	f.StringVar(&o.outage, "outage", "", "stop the server again and again, as in 30s/5m: for 30s every 5m (default: never)")
	f.DurationVar(&o.ExitAfter, "exit-after", 0, "end after this time, but not before the story has ended (default: at Ctrl-C)")
	f.StringVar(&o.hooks, "hooks", "", "run or print the commands of hooks and reloads (default: run for the built-in example, otherwise print)")
	f.StringVar(&o.ServerVersion, "zk-version", dev.DefaultZooKeeper, "ZooKeeper version to emulate, as in 3.9")
	f.BoolVar(&o.InPlace, "in-place", false, "write the files where the settings say; by default below a new directory, so that nothing here changes")
	f.BoolVar(&o.StandIn, "stand-in", true, "answer the health checks of services that do not run here")
	f.IntVar(&o.Hosts, "hosts", 1, "number of agents to run, each as a host; more than one to try votes and rollouts")
	f.BoolVar(&o.Story, "story", false, "explain each step of the agent (default: with the built-in example)")
	return c
}

func (o *devFlags) parse(c *cobra.Command, args []string) error {
	o.Paths = args
	if len(args) == 0 {
		o.Story = !c.Flags().Changed("story") || o.Story
	}
	switch o.hooks {
	case "run", "print":
		o.RunHooks = o.hooks == "run"
	case "":
		o.RunHooks = len(args) == 0
	default:
		return usagef("--hooks %q is not one of run, print", o.hooks)
	}
	switch _, _, err := net.SplitHostPort(o.Listen); {
	case err != nil:
		return usagef("--listen %q: want host:port, as in 127.0.0.1:2182", o.Listen)
	case o.Hosts < 1 || o.Hosts > dev.MaxHosts:
		return usagef("--hosts %d: want 1 to %d", o.Hosts, dev.MaxHosts)
	case o.Hosts > 1 && o.Story:
		return usagef("--story shows one host: leave out --hosts")
	case o.Churn < 0 || o.ExitAfter < 0:
		return usagef("a time must not be negative")
	}
	var err error
	if o.ServerVersion, err = dev.ServerVersion(o.ServerVersion); err != nil {
		return usagef("--zk-version: %v", err)
	}
	if o.Members, err = parseMembers(o.members); err != nil {
		return err
	}
	if o.outage == "" {
		return nil
	}
	first, second, _ := strings.Cut(o.outage, "/")
	var bad error
	o.Down, err = time.ParseDuration(first)
	o.Every, bad = time.ParseDuration(second)
	if err != nil || bad != nil || o.Down <= 0 || o.Every <= o.Down {
		return usagef("--outage %q: want DOWN/EVERY with EVERY longer than DOWN, as in 30s/5m", o.outage)
	}
	return nil
}

func parseMembers(list []string) ([]dev.Members, error) {
	specs := make([]dev.Members, 0, len(list))
	for _, text := range list {
		name, number, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 || n > dev.MaxMembers {
			return nil, usagef("--members %q: want GROUP=COUNT with at most %d, as in web=5", text, dev.MaxMembers)
		}
		specs = append(specs, dev.Members{Group: name, Count: n})
	}
	return specs, nil
}
