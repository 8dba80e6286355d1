package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// How many rows the pages about rollouts and locks show.
const (
	rolloutsShown = 5
	versionsShown = 50
	locksShown    = 200
	waitersShown  = 50
)

// The places below which commands and rolling reloads keep their locks.
var lockRoots = []struct{ kind, path string }{{"lock", "/zkagent/locks"}, {"rolling reload", rolling.Root}}

type listing[T any] struct {
	List  []T
	Error string
}

func newListing[T any](list []T, err error) listing[T] {
	l := listing[T]{List: list}
	if err != nil {
		l.Error = err.Error()
	}
	return l
}

// rolloutView is one rollout as the page shows it.
type rolloutView struct {
	*fleet.State

	Tree string // its name in the settings
	Path string
	Made config.Version // that is rolled out; the zero Version when it is not kept
	Rows []rolloutRow   // what needs a look first
	// Segments are the same hosts as a bar that fills from the left.
	Segments []rolloutRow
	Count    struct{ Done, Active, Failed, Waiting, Voted int }
}

// Waits is what the rollout waits for, in the words of the command line.
func (v rolloutView) Waits() string { return v.Waiting(time.Now()).Text }

// Orders are the commands that the rollout takes now.
func (v rolloutView) Orders() []string { return fleet.Orders(v.Phase()) }

type rolloutRow struct{ Host, State, Vote, Text string }

type changes struct {
	Rollouts []rolloutView
	Trees    []treeView
	Error    string
}

// treeView is a config tree with its latest versions.
type treeView struct {
	Name, Path string
	Versions   []config.Version // the latest first

	key string // of what was read: another key means that there may be another version
}

func (s *Server) rolloutsPage(r *http.Request, _ *show.Status) any {
	c, err := s.changes.get(r.Context(), s.readChanges)
	if err != nil {
		c.Error = err.Error()
	}
	return c
}

func (s *Server) readChanges(ctx context.Context) (changes, error) {
	zk, err := s.Source.Session(ctx)
	if err != nil {
		return changes{}, err
	}
	var now changes
	var failed error
	for _, c := range s.Source.Status().Sources {
		if c.Kind != string(view.KindConfig) {
			continue
		}
		names, err := fleet.Names(ctx, zk, c.Path)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		t := treeView{Name: c.Name, Path: c.Path, key: fmt.Sprint(c.Version, names)}
		if err := t.read(ctx, zk, s.changes.value.Trees); err != nil {
			failed = cmp.Or(failed, err)
		} else if len(t.Versions) > 0 {
			now.Trees = append(now.Trees, t)
		}
		slices.Reverse(names)
		for _, name := range names[:min(len(names), rolloutsShown)] {
			state, err := fleet.Read(ctx, zk, c.Path, name)
			if err != nil {
				failed = cmp.Or(failed, err)
				continue
			}
			v := viewRollout(c.Name, c.Path, state)
			v.Made = t.version(state.Proposal.Version)
			now.Rollouts = append(now.Rollouts, v)
		}
	}
	if len(now.Rollouts)+len(now.Trees) > 0 {
		failed = nil
	}
	return now, failed
}

// read reads the versions, or takes those of an earlier reading: a header has the
// name of every key, and people look often.
func (t *treeView) read(ctx context.Context, zk *session.Session, earlier []treeView) error {
	if i := slices.IndexFunc(earlier, func(e treeView) bool { return e.Path == t.Path && e.key == t.key }); i >= 0 {
		t.Versions = earlier[i].Versions
		return nil
	}
	list, err := config.History(ctx, zk, t.Path)
	if errors.Is(err, config.ErrNoVersion) {
		return nil
	}
	t.Versions = list[:min(len(list), versionsShown)]
	return err
}

// viewRollout lists the participants: failed first, then those under way.
func viewRollout(tree, path string, s *fleet.State) rolloutView {
	v := rolloutView{State: s, Tree: tree, Path: path}
	for _, h := range s.All() {
		rec := s.Hosts[h]
		v.Rows = append(v.Rows, rolloutRow{Host: h, State: cmp.Or(s.Turn(h), "waiting"), Vote: cmp.Or(rec.VoteText(), "no vote yet"), Text: rec.Error})
	}
	c := s.Counts()
	v.Count.Done, v.Count.Active, v.Count.Failed = c.Done, c.Granted+c.Started, c.Failed
	turns := c.Done + v.Count.Active + c.Failed
	v.Count.Voted, v.Count.Waiting = turns+c.Commit+c.Abort, len(v.Rows)-turns-c.Skipped
	v.Segments = sortHosts(slices.Clone(v.Rows), fleet.HostDone, fleet.HostFailed, fleet.HostStarted, fleet.HostGranted, fleet.HostSkipped)
	v.Rows = sortHosts(v.Rows, fleet.HostFailed, fleet.HostStarted, fleet.HostGranted, "waiting", fleet.HostSkipped)
	return v
}

// sortHosts puts hosts of the states that are named first, in that order.
func sortHosts(rows []rolloutRow, states ...string) []rolloutRow {
	rank := func(r rolloutRow) int {
		if i := slices.Index(states, r.State); i >= 0 {
			return i
		}
		return len(states)
	}
	slices.SortFunc(rows, func(x, y rolloutRow) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.Host, y.Host))
	})
	return rows
}

// lineView is a lock, semaphore or election with who stands in line.
type lineView struct {
	Kind, Name, Path string
	Contenders       []contenderView // in order
	More             int             // that are not shown
	Error            string
}

// contenderView is one znode in a line. The first holds a lock or leads.
type contenderView struct {
	ID    string // what it says of itself, or its znode
	Fence int64
	Since time.Time
}

func (s *Server) locksPage(r *http.Request, _ *show.Status) any {
	return newListing(s.lines.get(r.Context(), s.readLines))
}

// readLines reads the lines of this agent's elections and of the locks.
func (s *Server) readLines(ctx context.Context) ([]lineView, error) {
	zk, err := s.Source.Session(ctx)
	if err != nil {
		return nil, err
	}
	lines := []lineView{}
	for _, e := range s.Source.Status().Elections {
		lines = append(lines, readLine(ctx, zk, "election", e.Name, e.Path))
	}
	for _, root := range lockRoots {
		names, _, err := zk.Children(ctx, root.path)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			return lines, err
		}
		slices.Sort(names)
		for _, n := range names[:min(len(names), locksShown)] {
			if root.path == rolling.Root && rolling.Reserved(n) {
				continue
			}
			if l := readLine(ctx, zk, root.kind, n, session.JoinPath(root.path, n)); len(l.Contenders) > 0 || l.Error != "" {
				lines = append(lines, l)
			}
		}
	}
	halts, err := rolling.Halts(ctx, zk)
	for _, h := range halts {
		lines = append(lines, lineView{
			Kind: "rolling reload", Name: h.Bundle, Path: session.JoinPath(rolling.Root, h.Bundle),
			Error: fmt.Sprintf("halted by %s: %s; \"zkagent reload --clear-halt %s\" lifts the halt", h.Host, h.Reason, h.Bundle),
		})
	}
	return lines, err
}

// readLine reads who stands in line at a path: at a lock or an election, or else at
// a semaphore.
func readLine(ctx context.Context, s *session.Session, kind, name, path string) lineView {
	l := lineView{Kind: kind, Name: name, Path: path}
	list, err := recipe.Contenders(ctx, s, path)
	if err == nil && len(list) == 0 {
		if list, err = recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: path}).Participants(ctx); len(list) > 0 {
			l.Kind += " (permits)"
		}
	}
	if err != nil {
		l.Error = err.Error()
	}
	shown := list[:min(len(list), waitersShown)]
	l.More = len(list) - len(shown)
	for _, c := range shown {
		_, node := session.SplitPath(c.Path)
		l.Contenders = append(l.Contenders, contenderView{cmp.Or(fleet.Clip(string(c.Data), 200), node), c.Czxid, c.Since})
	}
	return l
}
