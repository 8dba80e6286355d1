package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/memzk"
)

// devListen is where the server of dev listens when nobody says otherwise.
const devListen = "127.0.0.1:2181"

// devTick is the tick of the server of dev: sessions end soon after their
// timeout, and short ones are granted.
const devTick = 500 * time.Millisecond

// devOptions are the flags of dev.
type devOptions struct {
	listen    string
	members   []string
	churn     time.Duration
	outage    string
	exitAfter time.Duration
	hooks     string
	inPlace   bool
	standIn   bool
	story     bool

	simulated []memberSpec
	down, gap time.Duration // of --outage
}

func newDevCommand(g *globals) *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use: "dev [DIR|FILE]...", Short: "Try settings with a ZooKeeper in memory",
		Long: `Start a ZooKeeper in memory on loopback, fill it from the directory "seed" beside
the settings, and run the agent on them. What happens is shown as it happens:
members, leaders, hooks, and the difference of every file. Settings and templates
are read again when they are edited. Any ZooKeeper client can connect.

It is not for production: all data are gone at the end. Nothing of this host is
touched: rendered files go below a directory of their own unless --in-place is
given, and commands of hooks and reloads are shown and not run unless --hooks run
is given. Checks are run.

Without an argument a built-in example is run, and explained.`,
		RunE: func(c *cobra.Command, args []string) error {
			if g.IsJSON() {
				return usagef("dev talks to people: --output %s is not possible", g.Format)
			}
			if err := o.parse(c, args); err != nil {
				return err
			}
			return g.dev(c.Context(), o, args)
		},
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", devListen, "where the server listens; port 0 takes a free one")
	f.StringArrayVar(&o.members, "members", nil, "simulate members, as in web=5: name of a group block, or path of a group")
	f.DurationVar(&o.churn, "churn", 0, "replace a simulated member by another again and again, after this time")
	f.StringVar(&o.outage, "outage", "", "take the server down again and again, as in 30s/5m: for 30s every 5m")
	f.DurationVar(&o.exitAfter, "exit-after", 0, "end after this time (a story that runs is told to its end)")
	f.StringVar(&o.hooks, "hooks", "", "run or print the commands of hooks and reloads (default print; run for the built-in example)")
	f.BoolVar(&o.inPlace, "in-place", false, "write the files where the settings say")
	f.BoolVar(&o.standIn, "stand-in", false, "answer for the services of the settings, on free ports")
	f.BoolVar(&o.story, "story", false, "show step by step what the agent does")
	return c
}

// parse checks the flags.
func (o *devOptions) parse(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		o.standIn, o.story = true, !c.Flags().Changed("story") || o.story
		if o.hooks == "" {
			o.hooks = "run"
		}
	}
	if o.hooks == "" {
		o.hooks = "print"
	}
	if o.hooks != "run" && o.hooks != "print" {
		return usagef("--hooks %q is not one of run, print", o.hooks)
	}
	if _, _, err := net.SplitHostPort(o.listen); err != nil {
		return usagef("--listen %q: want host:port, as in 127.0.0.1:2182", o.listen)
	}
	if o.churn < 0 || o.exitAfter < 0 {
		return usagef("a time must not be negative")
	}
	var err error
	if o.simulated, err = parseMembers(o.members); err != nil {
		return err
	}
	if o.down, o.gap, err = parseOutage(o.outage); err != nil {
		return err
	}
	return nil
}

// devRun is one run of dev.
type devRun struct {
	g       *globals
	o       devOptions
	dir     string // private directory: state, socket, files; removed at the end
	paths   []string
	server  *memzk.Server
	addr    string // of the server, for clients on this host
	adapter *adapter
	sim     *simulation
	wg      sync.WaitGroup // helpers: they end with the context of run
}

func (g *globals) dev(ctx context.Context, o devOptions, paths []string) error {
	// A closed terminal ends it as Ctrl-C does: nothing is left behind.
	ctx, stop := notifyHangup(ctx)
	defer stop()
	// Sockets have short paths.
	dir, err := os.MkdirTemp("", "zkagent-dev-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// Settings and templates may use it; see examples/quickstart.
	if err = os.Setenv("ZKAGENT_DEV_DIR", dir); err != nil {
		return err
	}
	d := &devRun{g: g, o: o, dir: dir, paths: paths, server: memzk.New(memzk.Options{TickTime: devTick})}
	defer d.server.Close()
	if len(paths) == 0 {
		if d.paths, err = unpackQuickstart(filepath.Join(dir, "quickstart")); err != nil {
			return err
		}
	}
	g.config = d.paths
	if err := d.listen(); err != nil {
		return err
	}
	return d.run(ctx)
}

// listen opens the port for clients.
func (d *devRun) listen() error {
	addr, err := d.server.Listen(d.o.listen)
	host, port, _ := net.SplitHostPort(d.o.listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fail(exitFailed, fmt.Errorf("port %s of %s is in use: another \"zkagent dev\", or a ZooKeeper, is there", port, host),
			"choose another port by --listen 127.0.0.1:2182, or a free one by --listen 127.0.0.1:0")
	case err != nil:
		return fail(exitFailed, fmt.Errorf("listen on %s: %w", d.o.listen, err))
	}
	d.addr = addr.String()
	if host != "localhost" && !loopback(host) {
		d.g.Warnf("the server listens on %s, which is not loopback: everybody who reaches this host can read and change everything in it", d.addr)
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			_, port, _ = net.SplitHostPort(d.addr)
			d.addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// run runs the agent and everything around it until ctx ends, the time is over,
// or the agent ends by itself.
func (d *devRun) run(ctx context.Context) error {
	cfg, err := d.settings()
	if err != nil {
		return err
	}
	defer d.adapter.close()
	if err = d.seed(ctx, &cfg, seedDir); err != nil {
		return err
	}
	a, err := agent.New(cfg)
	if err != nil {
		return fail(exitConfig, err)
	}
	life, end := context.WithCancel(ctx)
	defer d.wg.Wait()
	defer end()
	ended := make(chan error, 1)
	agentDone := make(chan struct{})
	go func() {
		defer close(agentDone)
		ended <- a.Run(life)
	}()
	// The agent leaves first, while the server is there for it.
	defer func() { end(); d.server.Start(); <-agentDone }()
	d.sim = newSimulation(d.server, d.memberConfig(&cfg))
	d.wg.Go(func() { d.sim.run(life, d.g, d.o) })
	d.wg.Go(func() { d.outages(life) })
	select {
	case <-a.Ready():
	case err := <-ended:
		return childOf(err)
	case <-ctx.Done():
		return nil
	}
	d.banner(&cfg, a)
	return childOf(d.watch(life, a, &cfg, ended))
}

// watch tells what happens until it is time to end.
func (d *devRun) watch(ctx context.Context, a *agent.Agent, cfg *agent.Config, ended <-chan error) error {
	n := newNarrator(d.g)
	var story *story
	if d.o.story {
		story = d.newStory(cfg)
		// The first title stands above what has happened already.
		if err := story.next(ctx, time.Now(), n); err != nil {
			return err
		}
	}
	over, limit := false, time.Now().Add(d.o.exitAfter)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case now := <-tick.C:
			n.look(new(a.Status()))
			if story != nil && !story.over() {
				if err := story.next(ctx, now, n); err != nil && ctx.Err() == nil {
					return err
				}
				continue
			}
			over = d.o.exitAfter > 0 && now.After(limit)
		}
		if over {
			return nil
		}
	}
}

// outages takes the server down and up again.
func (d *devRun) outages(ctx context.Context) {
	if d.o.gap == 0 {
		return
	}
	for pause(ctx, d.o.gap-d.o.down) {
		d.server.Stop()
		d.g.Printf("-- the server is down for %s\n", d.o.down)
		ok := pause(ctx, d.o.down)
		d.server.Start()
		if !ok {
			return
		}
		d.g.Printf("-- the server is up again\n")
	}
}

// pause waits; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
