package web

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
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

// change is one key that differs between two versions.
type change struct {
	Key, Kind string
	Lines     []string // empty when values are withheld
}

func (s *Server) configsPage(r *http.Request, _ *show.Status) any {
	c, err := s.changes.get(r.Context(), s.readChanges)
	return newListing(c.Trees, err)
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
		if v.Name, v.Path = name, list[i].Path; err != nil {
			v.Error = err.Error()
		}
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
		if err := v.readDiff(ctx, zk, values); err != nil {
			v.NoDiff = err.Error()
		}
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
