package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/rolling"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Bounds of the page of a config.
const (
	keysShown    = 500
	valueShown   = 200
	diffsShown   = 100
	diffMaxBytes = 4 << 20 // of a version whose values are read
)

// withheld stands where the page has a text that not everybody may read.
const withheld = "withheld: `show_output = true` in the block `http` shows them here"

type configView struct {
	treeView

	Keys     []keyView
	More     int      // keys that are not shown
	From, To int64    // versions of the diff; 0: there is none
	Diff     []change // between them
	NoDiff   string   // why there is none
	Withheld string   // why values are not shown; empty: they are
	Error    string
}

type keyView struct {
	Key, Value string
	Size       int
	By         config.Version // that set it; its Number is 0 when that is not known
	Before     int64          // the oldest kept version that has the value
}

type change struct {
	Key, Kind string
	Lines     []string // empty when values are withheld
}

// serveConfig renders the page of one config that this agent follows.
func (s *Server) serveConfig(w http.ResponseWriter, r *http.Request) {
	name, q := r.PathValue("name"), r.URL.Query()
	list := s.Source.Status().Sources
	i := slices.IndexFunc(list, func(v show.SourceStatus) bool { return v.Kind == string(view.KindConfig) && v.Name == name })
	if i < 0 {
		http.Error(w, "this agent follows no config of this name", http.StatusNotFound)
		return
	}
	from, to := versionOf(q.Get("from")), versionOf(q.Get("to"))
	values := s.public().all
	s.servePage(w, pageSection{r.URL.EscapedPath(), "Config " + name, "config"}, func(*show.Status) any {
		key := fmt.Sprint(name, "\x00", list[i].Version, "\x00", from, to, values)
		one, _ := s.configs.get(key, nil, func() (*cached[configView], error) { return &cached[configView]{}, nil })
		v, err := one.get(r.Context(), func(ctx context.Context) (configView, error) {
			zk, err := s.Source.Session(ctx)
			if err != nil {
				return configView{}, err
			}
			v := configView{treeView: treeView{Name: name, Path: list[i].Path}, From: from, To: to}
			if !values {
				v.Withheld = withheld
			}
			return v, v.read(ctx, zk, values)
		})
		v.Name, v.Path, v.Error = name, list[i].Path, problem(err)
		return v
	})
}

func versionOf(text string) int64 {
	n, _ := strconv.ParseInt(strings.TrimPrefix(text, "v"), 10, 64)
	return max(n, 0)
}

func (v *configView) read(ctx context.Context, zk *session.Session, values bool) error {
	if err := v.treeView.read(ctx, zk, nil); err != nil {
		return err
	}
	tree, err := config.Read(ctx, zk, v.Path)
	if err != nil {
		return err
	}
	var names []string
	for path, k := range tree.Keys().All() {
		if len(v.Keys) == keysShown {
			v.More = tree.Len() - keysShown
			break
		}
		row := keyView{Key: path, Size: len(k.Value)}
		if values {
			row.Value = fleet.Clip(term.Escape(string(k.Value)), valueShown)
		}
		v.Keys, names = append(v.Keys, row), append(names, path)
	}
	if len(v.Versions) == 0 {
		return nil // a config without versions
	}
	origins, err := config.Origins(ctx, zk, v.Path, tree.Generation, names)
	if err != nil {
		return err
	}
	for i, k := range v.Keys {
		v.Keys[i].By, v.Keys[i].Before = origins[k.Key].Version, origins[k.Key].Before
	}
	if v.To != 0 {
		v.NoDiff = problem(v.readDiff(ctx, zk, values))
	}
	return nil
}

func (v *configView) readDiff(ctx context.Context, zk *session.Session, values bool) error {
	var trees [2]*view.Tree
	for i, n := range []int64{v.From, v.To} {
		if n == 0 {
			continue // before the first version: all of it is new
		}
		switch one := v.version(n); {
		case one.Number == 0:
			return fmt.Errorf("version %d does not exist, or is not among the latest %d", n, versionsShown)
		case one.Size > diffMaxBytes:
			return fmt.Errorf("version %d is too large for the page: `zkagent config diff %s %d %d` compares", n, v.Path, v.From, v.To)
		}
		var err error
		if trees[i], err = config.ReadVersion(ctx, zk, v.Path, n); err != nil {
			return err
		}
	}
	list := config.Diff(trees[0], trees[1])
	for _, c := range list[:min(len(list), diffsShown)] {
		one := change{Key: c.Key, Kind: c.Kind}
		if values {
			text := fleet.Clip(c.Unified(fmt.Sprint("v", v.From), fmt.Sprint("v", v.To)), 16<<10)
			one.Lines = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		}
		v.Diff = append(v.Diff, one)
	}
	if n := len(list) - diffsShown; n > 0 {
		v.Diff = append(v.Diff, change{Key: fmt.Sprintf("%d more keys", n), Kind: config.Changed})
	}
	return nil
}

// version returns a version of the list; the zero Version when it is not there.
func (v treeView) version(n int64) config.Version {
	return v.find(func(one config.Version) bool { return one.Number == n })
}

// Latest is the version in use; the zero Version when none is.
func (v treeView) Latest() config.Version {
	return v.find(func(one config.Version) bool { return one.Active })
}

func (v treeView) find(is func(config.Version) bool) config.Version {
	if i := slices.IndexFunc(v.Versions, is); i >= 0 {
		return v.Versions[i]
	}
	return config.Version{}
}

// How many rows the pages about rollouts and locks show.
const (
	rolloutsShown = 5
	versionsShown = 50
	locksShown    = 200
	waitersShown  = 50
)

var lockRoots = []struct{ kind, path string }{{"lock", "/zkagent/locks"}, {"rolling reload", rolling.Root}}

// problem is the text of an error for the page; "" for none.
func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

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

func (s *Server) changesPage(r *http.Request, _ *show.Status) any {
	c, err := s.changes.get(r.Context(), s.readChanges)
	c.Error = problem(err)
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
func (v *treeView) read(ctx context.Context, zk *session.Session, earlier []treeView) error {
	if i := slices.IndexFunc(earlier, func(e treeView) bool { return e.Path == v.Path && e.key == v.key }); i >= 0 {
		v.Versions = earlier[i].Versions
		return nil
	}
	list, err := config.History(ctx, zk, v.Path)
	if errors.Is(err, config.ErrNoVersion) {
		return nil
	}
	v.Versions = list[:min(len(list), versionsShown)]
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

func (s *Server) readLines(ctx context.Context) ([]lineView, error) {
	zk, err := s.Source.Session(ctx)
	if err != nil {
		return nil, err
	}
	lines := lists.Map(s.Source.Status().Elections, func(e show.ElectionStatus) lineView { return readLine(ctx, zk, "election", e.Name, e.Path) })
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
	l.Error = problem(err)
	shown := list[:min(len(list), waitersShown)]
	l.More = len(list) - len(shown)
	for _, c := range shown {
		_, node := session.SplitPath(c.Path)
		l.Contenders = append(l.Contenders, contenderView{cmp.Or(fleet.Clip(string(c.Data), 200), node), c.Czxid, c.Since})
	}
	return l
}
