package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
)

func (d *run) settings() error {
	level := &slog.LevelVar{}
	level.Set(slog.LevelError + 1) // the narrator shows what a log would
	if d.o.Verbose {
		level.Set(slog.LevelDebug)
	}
	logger := slog.New(slog.NewTextHandler(d.con.Err, &slog.HandlerOptions{Level: level}))
	load := d.o.Load // shows what is wrong, once
	for i := range max(1, d.o.Hosts) {
		h := &host{d: d, dir: d.dir, standIns: map[string]*backend{}}
		if d.o.Hosts > 1 {
			h.name = fmt.Sprintf("host-%d", i+1)
			h.dir = filepath.Join(d.dir, h.name)
		}
		if i > 0 {
			h.http = anyPort // the first has the port of the settings
		}
		d.hosts = append(d.hosts, h)
		s, err := load(d.paths, settings.Options{Offline: true})
		if err != nil {
			return err
		}
		load = settings.Load
		h.cfg = s.Config
		h.cfg.Logger = logger
		if err := h.adapt(&h.cfg); err != nil {
			return err
		}
		h.cfg.Load = func() (agent.Config, error) {
			s, err := settings.Load(d.paths, settings.Options{Offline: true})
			if err != nil {
				return agent.Config{}, err
			}
			return s.Config, h.adapt(&s.Config)
		}
	}
	return nil
}

// host is one agent, with a directory, listeners and stand-ins of its own. It changes
// settings so that they use the server in memory, and so that nothing of this host is
// touched. The same settings are always changed in the same way: a reload disturbs
// nothing that did not change.
type host struct {
	d    *run
	cfg  agent.Config
	a    *agent.Agent
	name string // empty: there is only one
	dir  string
	http string

	mu       sync.Mutex          // guards standIns
	standIns map[string]*backend // by service; nil: something answers already
}

const anyPort = "127.0.0.1:0"

func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.standIns {
		if b != nil {
			b.close()
		}
	}
}

func (h *host) adapt(c *agent.Config) error {
	c.ZooKeeper.Servers, c.ZooKeeper.TLS, c.ZooKeeper.StateDir = []string{h.d.addr}, nil, ""
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return err
	}
	c.StateDir = filepath.Join(h.dir, "state")
	c.Admin.Socket = filepath.Join(h.dir, "sock")
	c.OnStop, c.Version = "leave", h.d.o.Version
	if h.http == "" {
		h.http = httpAddress(c.HTTP)
	}
	c.HTTP = &web.HTTPConfig{Listen: h.http}
	if h.name != "" {
		c.ID, c.Host = h.name, h.name
		if h.name != "host-1" {
			c.DNS = nil // the first host has the port of the settings
		}
		groups := map[string]bool{}
		for i := range c.Services {
			s := &c.Services[i]
			s.MemberID = h.name
			if slices.ContainsFunc(s.Groups, func(group string) bool { return groups[group] }) {
				s.MemberID += "-" + s.Name
			}
			for _, group := range s.Groups {
				groups[group] = true
			}
		}
	}
	for i := range c.Services {
		if err := h.standIn(&c.Services[i]); err != nil {
			return err
		}
	}
	for i := range c.Bundles {
		h.bundle(&c.Bundles[i])
	}
	if !h.d.o.RunHooks {
		c.Run = h.print
		c.Execs = nil
	}
	return nil
}

// httpAddress is where the settings want the page, unless something else is there.
func httpAddress(c *web.HTTPConfig) string {
	if c == nil {
		return anyPort
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", c.Listen)
	if err != nil {
		return anyPort
	}
	_ = l.Close()
	return c.Listen
}

// bundle moves the files of a bundle below our directory, and lets them be
// ours: a developer is not root.
func (h *host) bundle(b *apply.Config) {
	if !h.d.o.RunHooks && b.Reload != nil {
		b.Reload.Verify = nil // nothing is reloaded, so no worker is new
	}
	if h.d.o.InPlace {
		return
	}
	for i := range b.Templates {
		t := &b.Templates[i]
		t.Owner, t.Group = "", ""
		where := t.Destination
		t.Destination = func(e *template.Each) (string, error) {
			path, err := where(e)
			if err != nil || strings.HasPrefix(path, h.dir+string(filepath.Separator)) {
				return path, err
			}
			if rest, ok := strings.CutPrefix(path, h.d.dir+string(filepath.Separator)); ok {
				path = filepath.Join(h.dir, rest) // $ZKAGENT_DEV_DIR is one for all hosts
			} else {
				path = filepath.Join(h.dir, "files", path)
			}
			// On the host the directory is there, or it is found missing.
			return path, os.MkdirAll(filepath.Dir(path), 0o750)
		}
	}
}

// print stands for a hook or reload. Checks have no effect, so they are run.
func (h *host) print(ctx context.Context, c proc.Command) (proc.Result, error) {
	event := ""
	for _, e := range c.Env {
		if v, ok := strings.CutPrefix(e, "ZKAGENT_EVENT="); ok {
			event = v
		}
	}
	if event == "" || event == "check" {
		return proc.Run(ctx, c)
	}
	words := lists.Map(c.Args, term.ShellWord)
	h.d.con.Printf("-- would run (%s): %s\n", event, term.Printable(strings.Join(words, " ")))
	return proc.Result{Output: "not run: --hooks run runs it\n"}, nil
}

// standIn answers for a service on a free port, and moves it and the checks that
// ask it there. A service that answers already stays, but on the first host alone.
func (h *host) standIn(c *registry.ServiceConfig) error {
	if !h.d.o.StandIn {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b, known := h.standIns[c.Name]
	if !known && !h.d.builtIn && (h.name == "" || h.name == "host-1") && answers(c) {
		h.standIns[c.Name], known = nil, true
	}
	if known && b == nil {
		return nil
	}
	if b == nil {
		var err error
		if b, err = newBackend(c.Name); err != nil {
			return err
		}
		h.standIns[c.Name] = b
	}
	old := ":" + strconv.Itoa(c.Port)
	for i := range c.Checks {
		k := &c.Checks[i]
		if host, port, err := net.SplitHostPort(k.Address); err == nil && ":"+port == old && loopback(host) {
			k.Address = b.addr
		}
		k.URL = strings.Replace(k.URL, "://127.0.0.1"+old, "://"+b.addr, 1)
		k.URL = strings.Replace(k.URL, "://localhost"+old, "://"+b.addr, 1)
	}
	c.Address, c.Port = "127.0.0.1", b.port
	return nil
}

// answers reports whether something listens at the service's port of this host.
func answers(c *registry.ServiceConfig) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Directories beside the settings.
const (
	seedDir   = "seed"   // in ZooKeeper before the agent starts
	changeDir = "change" // what the story publishes
)

// seed writes the files of the named directories beside the settings as znodes
// of the same paths. What lies below a config tree is published as one change,
// as "zkagent config publish" does.
func (d *run) seed(ctx context.Context, cfg *agent.Config, name string) error {
	zk := cfg.ZooKeeper
	s, err := session.Dial(ctx, zk)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if zk.Chroot != "" && !d.server.Exists(zk.Chroot) {
		if err := d.server.Create(zk.Chroot, nil); err != nil {
			return err
		}
	}
	for _, p := range d.paths {
		files, err := seedFiles(p, name)
		if err != nil {
			return err
		}
		if err := plant(ctx, s, cfg, files, name); err != nil {
			return fmt.Errorf("fill the server from %s of %s: %w", name, p, err)
		}
	}
	return nil
}

// seedFiles reads the directory beside one settings path; there may be none.
func seedFiles(path, name string) (map[string][]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	files, err := config.ReadDir(filepath.Join(path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return files, err
}

// plant publishes what belongs to config trees, and creates the rest.
func plant(ctx context.Context, s *session.Session, cfg *agent.Config, files map[string][]byte, why string) error {
	trees := map[string]map[string][]byte{}
	layouts := map[string]string{}
	for key, data := range files {
		path := "/" + key
		root := ""
		for _, c := range cfg.Configs {
			if strings.HasPrefix(path, c.Path+"/") && len(c.Path) > len(root) {
				root, layouts[c.Path] = c.Path, c.Layout
			}
		}
		if root == "" || layouts[root] == "plain" {
			if err := s.CreateParents(ctx, path); err != nil {
				return err
			}
			_, _, err := s.Create(ctx, path, data, session.Persistent)
			if errors.Is(err, session.ErrNodeExists) {
				_, err = s.Set(ctx, path, data, -1)
			}
			if err != nil {
				return err
			}
			continue
		}
		if trees[root] == nil {
			trees[root] = map[string][]byte{}
		}
		trees[root][strings.TrimPrefix(path, root+"/")] = data
	}
	for root, keys := range trees {
		_, err := fleet.Publish(ctx, s, fleet.PublishConfig{Path: root, Layout: layouts[root], Keys: keys, Message: why, Author: "zkagent dev", Force: true})
		if err != nil {
			return err
		}
	}
	return nil
}
