package dev

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/term"
)

// How long a step of the story stays on the screen, and how long its effect is
// waited for at most.
const (
	stepPause = 1200 * time.Millisecond
	stepLimit = 60 * time.Second
)

type step struct {
	title string
	act   func(context.Context, *narrator) error
	done  func(*narrator) bool
}

// story shows what the agent does, step by step. It is driven by the loop that
// also shows what happens, so that each effect stands below its cause.
type story struct {
	d       *run
	steps   []step
	at      int
	running bool
	began   time.Time
	until   time.Time // pause after a step
}

func (d *run) newStory(cfg *agent.Config) *story {
	s := &story{d: d}
	group := ""
	for _, c := range cfg.Services {
		for _, g := range cfg.Groups {
			if slices.Contains(c.Groups, g.Path) {
				group = g.Name
			}
		}
	}
	s.registered(cfg)
	if group != "" {
		s.joined(group)
	}
	s.published(cfg)
	if group != "" {
		s.left(group)
	}
	s.steps = append(s.steps, step{
		title: "ZooKeeper goes down: every file stays as it is",
		act:   func(context.Context, *narrator) error { s.d.server.Stop(); return nil },
		done:  func(n *narrator) bool { return n.zk != "connected" && s.waited(time.Second) },
	}, step{
		title: "ZooKeeper is back: the agent continues in its old session",
		act:   func(context.Context, *narrator) error { s.d.server.Start(); return nil },
		done:  func(n *narrator) bool { return n.zk == "connected" },
	})
	return s
}

// registered waits for what the agent does by itself.
func (s *story) registered(cfg *agent.Config) {
	s.steps = append(s.steps, step{
		title: "The agent registers this host's services, renders its files, and leads: of all hosts only this one runs the hook",
		done: func(n *narrator) bool {
			elected := 0
			for _, h := range cfg.Hooks {
				if h.OnElected {
					elected++
				}
			}
			return n.changes >= len(cfg.Bundles) && n.hooks >= elected
		},
	})
}

func (s *story) joined(group string) {
	want := 0
	s.steps = append(s.steps, step{
		title: "Two more hosts register in the group",
		act: func(ctx context.Context, n *narrator) error {
			want = len(n.groups[group]) + 2
			for range 2 {
				if err := s.d.sim.add(ctx, group); err != nil {
					return err
				}
			}
			return nil
		},
		done: func(n *narrator) bool {
			return len(n.groups[group]) >= want && s.settled(n)
		},
	})
}

func (s *story) published(cfg *agent.Config) {
	found := false
	for _, p := range s.d.paths {
		if files, err := seedFiles(p, changeDir); err == nil && len(files) > 0 {
			found = true
		}
	}
	if !found {
		return
	}
	before, hooks := 0, 0
	s.steps = append(s.steps, step{
		title: "Somebody publishes a config change: the agent sees all of it, or nothing",
		act: func(ctx context.Context, n *narrator) error {
			before, hooks = n.changes, n.hooks
			return s.d.seed(ctx, cfg, changeDir)
		},
		done: func(n *narrator) bool {
			wanted := 0
			for _, h := range cfg.Hooks {
				if len(h.OnChange) > 0 {
					wanted = 1
				}
			}
			return (n.changes > before || s.waited(2*time.Second)) && n.hooks >= hooks+wanted
		},
	})
}

func (s *story) left(group string) {
	before := 0
	s.steps = append(s.steps, step{
		title: "A host leaves: its session ends, and with it its member",
		act: func(_ context.Context, n *narrator) error {
			before = len(n.groups[group])
			s.d.sim.remove(group)
			return nil
		},
		done: func(n *narrator) bool {
			return len(n.groups[group]) < before && s.settled(n)
		},
	})
}

// settled reports whether the effect on files has had time to be shown.
func (s *story) settled(n *narrator) bool { return n.changes > 0 && s.waited(500*time.Millisecond) }

func (s *story) waited(d time.Duration) bool { return time.Since(s.began) > d }

func (s *story) over() bool { return s.at >= len(s.steps) }

func (s *story) next(ctx context.Context, now time.Time, n *narrator) error {
	if now.Before(s.until) {
		return nil
	}
	st := s.steps[s.at]
	if !s.running {
		s.running, s.began = true, now
		s.d.con.Printf("\n%s\n", s.d.con.Colored(s.d.con.Out, "1", fmt.Sprintf("%d. %s", s.at+1, st.title)))
		if st.act != nil {
			return st.act(ctx, n)
		}
		return nil
	}
	if !st.done(n) {
		if !s.waited(stepLimit) {
			return nil
		}
		n.report("no effect within %s; \"zkagent status\" may show the reason", stepLimit)
	}
	s.running, s.until = false, now.Add(stepPause)
	s.at++
	if s.over() {
		s.d.con.Printf("\nThat was all. zkagent dev keeps running: edit the settings or a template, or try one of the commands above.\n")
		if s.d.o.ExitAfter == 0 {
			s.d.con.Printf("Ctrl-C ends it.\n")
		}
	}
	return nil
}

func (d *run) banner() {
	con := d.con
	cfg := &d.hosts[0].cfg
	me := os.Args[0]
	zk := d.addr + cfg.ZooKeeper.Chroot
	con.Printf("%s\n", con.Colored(con.Out, "1", "zkagent dev: a ZooKeeper in memory. Not for production: all data are gone at the end."))
	con.Printf("  zookeeper  %s   (any client: zkCli.sh -server %s)\n", zk, zk)
	for _, h := range d.hosts {
		con.Printf("  page       http://%s/   (%s)\n", h.a.HTTPAddr(), cmp.Or(h.name, "metrics: /metrics"))
	}
	con.Printf("  settings   %s\n", strings.Join(d.paths, " "))
	for _, h := range d.hosts {
		for _, b := range h.cfg.Bundles {
			if b.ForEach != nil {
				continue
			}
			for _, t := range b.Templates {
				if path, err := t.Destination(nil); err == nil {
					con.Printf("  file       %s\n", path)
				}
			}
		}
	}
	if !d.o.RunHooks && len(cfg.Hooks) > 0 {
		con.Printf("  hooks      are shown, not run (--hooks run)\n")
	}
	con.Printf("Try in another terminal:\n")
	con.Printf("  %s status --addr %s\n", term.ShellWord(me), cfg.Admin.Socket)
	con.Printf("  %s zk tree / --zk %s\n", term.ShellWord(me), zk)
	switch {
	case len(cfg.Configs) > 0:
		dir, root := "DIR", cfg.Configs[0].Path
		for _, p := range d.paths {
			for _, name := range []string{changeDir, seedDir} {
				at := filepath.Join(p, name, root)
				if info, err := os.Stat(at); dir == "DIR" && err == nil && info.IsDir() {
					dir = at
				}
			}
		}
		con.Printf("  %s config publish %s %s --zk %s\n", term.ShellWord(me), term.ShellWord(dir), root, zk)
	default:
		con.Printf("  %s members --zk %s\n", term.ShellWord(me), zk)
	}
}
