// Package dev tries settings with a ZooKeeper in memory: it fills the server,
// runs the agent on the settings, and prints what happens as it happens.
//
// Guaranteed: nothing of the host is touched unless the options say so; nothing
// is left behind at the end.
package dev

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

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/examples/quickstart"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
)

// tickTime is the tick of the server: sessions end soon after their timeout,
// and short ones are granted.
const tickTime = 500 * time.Millisecond

// MaxMembers bounds the simulated members of one group: each has a session and
// a port of its own.
const MaxMembers = 500

// MaxHosts bounds the agents.
const MaxHosts = 20

// Members are the simulated members of one group.
type Members struct {
	Group string // name of a group block, or a path
	Count int
}

// Options say what is tried, and how.
type Options struct {
	Paths       []string // of the settings; none means the built-in example
	Listen      string
	Members     []Members
	Churn       time.Duration // how often a simulated member is replaced
	Down, Every time.Duration // the server is down for Down every Every
	ExitAfter   time.Duration
	RunHooks    bool // run the commands of hooks and reloads, not only show them
	InPlace     bool // write the files where the settings say
	StandIn     bool // answer for the services of the settings that do not answer
	Hosts       int  // how many agents run, each as a host of its own; 0: one
	Story       bool // show step by step what the agent does

	// ServerVersion is the version of ZooKeeper that the server emulates.
	ServerVersion string

	Version string
	Verbose bool
	Console *term.Console
	// Load loads the settings for the first time, and shows what is wrong with them.
	Load func([]string, settings.Options) (*settings.Settings, error)
}

// DefaultZooKeeper is the default version of the server.
const DefaultZooKeeper = memzk.DefaultVersion

// ServerVersion returns the version of ZooKeeper that a server emulates when the user
// asks for a version.
func ServerVersion(version string) (string, error) { return memzk.Personality(version) }

// ErrSettings means that the agent does not take the settings.
var ErrSettings = errors.New("the settings cannot be used")

type run struct {
	con    *term.Console
	o      *Options
	dir    string // private directory: state, socket, files; removed at the end
	paths  []string
	server *memzk.Server
	addr   string // of the server, for clients on this host
	hosts  []*host
	// builtIn says that the example of the program runs.
	builtIn bool
	sim     *simulation
	wg      sync.WaitGroup // helpers: they end with the context of run
}

// Run tries the settings until ctx ends, the time is over, or the agent ends by
// itself.
func Run(ctx context.Context, o *Options) error {
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
	d := &run{con: o.Console, o: o, dir: dir, paths: o.Paths, server: memzk.New(memzk.Options{TickTime: tickTime, Version: o.ServerVersion})}
	defer d.server.Close()
	if len(o.Paths) == 0 {
		d.builtIn = true
		d.paths = []string{filepath.Join(dir, "quickstart")}
		if err = os.CopyFS(d.paths[0], quickstart.Files); err != nil {
			return err
		}
	}
	if err := d.listen(); err != nil {
		return err
	}
	return d.run(ctx)
}

func (d *run) listen() error {
	addr, err := d.server.Listen(d.o.Listen)
	host, port, _ := net.SplitHostPort(d.o.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &term.HintError{
			Err:  fmt.Errorf("port %s of %s is in use: another \"zkagent dev\", or a ZooKeeper, is there", port, host),
			Hint: "choose another port by --listen 127.0.0.1:2182, or a free one by --listen 127.0.0.1:0",
		}
	case err != nil:
		return fmt.Errorf("listen on %s: %w", d.o.Listen, err)
	}
	d.addr = addr.String()
	if host != "localhost" && !loopback(host) {
		d.con.Warnf("the server listens on %s, which is not loopback: everybody who reaches this host can read and change everything in it", d.addr)
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

// run runs the agent and everything around it.
func (d *run) run(ctx context.Context) error {
	defer func() {
		for _, h := range d.hosts {
			h.close()
		}
	}()
	if err := d.settings(); err != nil {
		return err
	}
	cfg := &d.hosts[0].cfg
	if err := d.seed(ctx, cfg, seedDir); err != nil {
		return err
	}
	for _, h := range d.hosts {
		var err error
		if h.a, err = agent.New(h.cfg); err != nil {
			return fmt.Errorf("%w: %w", ErrSettings, err)
		}
	}
	life, end := context.WithCancel(ctx)
	defer d.wg.Wait()
	defer end()
	ended := make(chan error, len(d.hosts))
	var agents sync.WaitGroup
	for _, h := range d.hosts {
		agents.Go(func() { ended <- h.a.Run(life) })
	}
	// The agents leave first, while the server is there for them.
	defer func() { end(); d.server.Start(); agents.Wait() }()
	d.sim = &simulation{cfg: cfg, zk: cfg.ZooKeeper, count: map[string]int{}, members: map[string][]context.CancelFunc{}}
	d.sim.zk.Dial, d.sim.zk.Logger = d.server.Dial, nil
	d.wg.Go(func() { d.sim.run(life, d.con, d.o) })
	d.wg.Go(func() { d.outages(life) })
	// An agent that waits for something is shown, too: the narrator says for what.
	soon, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	for _, h := range d.hosts {
		select {
		case <-h.a.Ready():
		case <-soon.Done():
		case err := <-ended:
			return err
		}
	}
	d.banner()
	return d.watch(life, ended)
}

const readyWait = time.Second

func (d *run) watch(ctx context.Context, ended <-chan error) error {
	narrators := lists.Map(d.hosts, func(h *host) *narrator { return newNarrator(d.con, h.name, d.addr+h.cfg.ZooKeeper.Chroot) })
	n := narrators[0]
	var story *story
	if d.o.Story {
		story = d.newStory(&d.hosts[0].cfg)
		// The first title stands above what has happened already.
		if err := story.next(ctx, time.Now(), n); err != nil {
			return err
		}
	}
	limit := time.Now().Add(d.o.ExitAfter)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case now := <-tick.C:
			for i, h := range d.hosts {
				narrators[i].look(new(h.a.Status()))
			}
			if story != nil && !story.over() {
				if err := story.next(ctx, now, n); err != nil && ctx.Err() == nil {
					return err
				}
			} else if d.o.ExitAfter > 0 && now.After(limit) {
				return nil
			}
		}
	}
}

func (d *run) outages(ctx context.Context) {
	if d.o.Every == 0 {
		return
	}
	for pace.Sleep(ctx, d.o.Every-d.o.Down) {
		d.server.Stop()
		d.con.Printf("-- the server is down for %s\n", d.o.Down)
		ok := pace.Sleep(ctx, d.o.Down)
		d.server.Start()
		if !ok {
			return
		}
		d.con.Printf("-- the server is up again\n")
	}
}
