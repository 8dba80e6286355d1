package dev

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

const maxShown = 16 << 10

type narrator struct {
	con      *term.Console
	host     string // its name, when there are several
	server   string // where clients reach the server
	files    map[string]string
	services map[string]string
	groups   map[string][]string
	leaders  map[string]int64
	runs     map[string]int64 // by hook: when the latest printed run began, and whether it had ended
	open     map[string]condition.Condition
	zk       string
	hash     string
	changes  int // differences printed so far
	hooks    int // ended runs printed so far
}

func newNarrator(con *term.Console, host, server string) *narrator {
	if host != "" {
		host += ": "
	}
	return &narrator{
		con: con, host: host, server: server, files: map[string]string{}, services: map[string]string{}, groups: map[string][]string{},
		leaders: map[string]int64{}, runs: map[string]int64{}, open: map[string]condition.Condition{},
	}
}

func (n *narrator) report(format string, args ...any) {
	n.con.Printf("-- %s%s\n", n.host, term.Printable(fmt.Sprintf(format, args...)))
}

func (n *narrator) look(s *show.Status) {
	if n.zk != s.ZooKeeper.State {
		if n.zk != "" || s.ZooKeeper.State != "connected" {
			n.report("zookeeper: %s", s.ZooKeeper.State)
		}
		n.zk = s.ZooKeeper.State
	}
	if n.hash != s.Settings.Hash {
		if n.hash != "" {
			n.report("settings loaded again")
		}
		n.hash = s.Settings.Hash
	}
	n.units(s)
	for _, h := range s.Hooks {
		for _, r := range h.Runs {
			if r.State == "started" || r.Began.UnixNano() <= n.runs[h.Name] {
				continue
			}
			n.runs[h.Name] = r.Began.UnixNano()
			n.hooks++
			n.report("hook %s ran (%s): %s", h.Name, r.Event, r.State)
			for line := range strings.Lines(r.Output) {
				n.con.Printf("   | %s\n", term.Printable(strings.TrimRight(line, "\n")))
			}
		}
	}
	n.templates(s)
	n.conditions(s)
}

func (n *narrator) units(s *show.Status) {
	for _, v := range s.Services {
		word := v.State
		if v.Registered {
			word += " as " + strings.Join(v.Nodes, ", ")
		}
		if n.services[v.Name] != word {
			n.services[v.Name] = word
			n.report("service %s: %s", v.Name, word)
		}
	}
	for _, v := range s.Groups {
		now := lists.Map(v.Members, func(m view.Member) string { return m.ID })
		slices.Sort(now)
		now = slices.Compact(now)
		before := n.groups[v.Name]
		if slices.Equal(now, before) {
			continue
		}
		n.groups[v.Name] = now
		var words []string
		for _, id := range now {
			if !slices.Contains(before, id) {
				words = append(words, id+" joined")
			}
		}
		for _, id := range before {
			if !slices.Contains(now, id) {
				words = append(words, id+" left")
			}
		}
		n.report("group %s: %s (%s)", v.Name, strings.Join(words, ", "), term.Count(len(now), "member"))
	}
	for _, v := range s.Elections {
		if n.leaders[v.Name] != v.Term && v.Held {
			n.leaders[v.Name] = v.Term
			n.report("election %s: this agent leads, term %d", v.Name, v.Term)
		}
	}
}

func (n *narrator) templates(s *show.Status) {
	wanted := map[string]bool{}
	for _, t := range s.Templates {
		for _, path := range t.Files {
			wanted[path] = true
			data, err := os.ReadFile(path) //nolint:gosec // a file that our agent writes
			before, known := n.files[path]
			if err != nil || known && before == string(data) {
				continue
			}
			n.files[path] = string(data)
			n.changes++
			text := term.Diff(path, []byte(before), known, data)
			if len(text) > maxShown {
				text = text[:maxShown] + "\n...\n"
			}
			if _, rest, ok := strings.Cut(text, "\n"); ok {
				text = rest // the command line of a diff
			}
			_ = n.con.PrintDiff(text)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(n.files)) {
		if _, err := os.Lstat(path); err != nil && !wanted[path] {
			delete(n.files, path)
			n.report("file removed: %s", path)
		}
	}
}

func (n *narrator) conditions(s *show.Status) {
	now := map[string]condition.Condition{}
	for _, c := range s.Conditions {
		if c.Code == condition.ZooKeeperUnreachable.Code {
			continue // the state of the session has its own line.
		}
		key := c.Name()
		now[key] = c
		if old, known := n.open[key]; !known || old.Text != c.Text {
			n.report("%s: %s", strings.TrimSpace(key), c.Text)
			n.advise(c, s)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(n.open)) {
		if _, still := now[key]; !still {
			n.report("%s: over", strings.TrimSpace(key))
		}
	}
	n.open = now
}

// advise says how to make a condition pass. For a missing source or member it names
// the command that makes it: a user who tries settings has no other publisher and no
// other hosts.
func (n *narrator) advise(c condition.Condition, s *show.Status) {
	if c.Code == condition.GroupEmpty.Code {
		for _, g := range s.Groups {
			if len(n.groups[g.Name]) == 0 {
				n.con.Printf("   for members to try it with, start this command with --members %s=2\n", term.ShellWord(g.Name))
			}
		}
		return
	}
	if c.Code != condition.WaitingForSources.Code {
		n.con.Printf("   %s\n", strings.ReplaceAll(c.Kind().Do, "`", ""))
		return
	}
	for _, src := range s.Sources {
		if src.Reported {
			continue
		}
		switch src.Kind {
		case string(view.KindConfig):
			n.con.Printf("   it continues after: %s config publish DIR %s --zk %s\n   (DIR is a directory with a file for each key, whose bytes are the value)\n", term.ShellWord(os.Args[0]), src.Path, n.server)
		default:
			n.con.Printf("   it continues when %s exists; the directory \"seed\" next to the settings may have it\n", src.Path)
		}
	}
}
