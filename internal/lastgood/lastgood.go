// Package lastgood keeps the views that an agent has applied, for a start without
// ZooKeeper.
//
// A file begins with a whole view; each later line is what the next view changes. So
// a change costs what has changed, not the whole view. Each line has a checksum.
// The latest view counts whose file is sound up to it.
package lastgood

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/view"
)

const filesKept = 5

// changesAtLeast is how many bytes of changes a file may hold, however small the
// view is with which it begins. A file of a larger view may double.
const changesAtLeast = 64 << 10

// maxFile is how many bytes of a file are read.
const maxFile = 1 << 30

const magic = "zkagent-lastgood 1 "

// View is a view that was applied.
type View struct {
	view.View

	Saved time.Time
}

// step is a line of a file: what a view changes in the one before it.
type step struct {
	Saved  time.Time      `json:"saved"`
	Trees  []savedTree    `json:"trees,omitempty"`
	Groups []*view.Group  `json:"groups,omitempty"`
	Sets   []*view.Groups `json:"sets,omitempty"`
}

// savedTree is a config tree with its keys, or with those that have changed.
type savedTree struct {
	Tree view.Tree         `json:"tree"`
	Keys map[string][]byte `json:"keys"`
	Gone []string          `json:"gone,omitempty"`
}

// after is the view after the step.
func (p *step) after(v view.View) view.View {
	for _, t := range p.Trees {
		var keys *view.Keys
		if old, ok := v.Tree(t.Tree.Name); ok {
			keys = old.Keys()
		}
		edit := keys.Edit()
		for _, path := range t.Gone {
			edit.Delete(path)
		}
		for _, path := range slices.Sorted(maps.Keys(t.Keys)) {
			edit.Set(path, view.Key{Value: t.Keys[path]})
		}
		v = v.With(view.NewTree(t.Tree, edit.Done()))
	}
	for _, x := range p.Groups {
		v = v.With(x)
	}
	for _, x := range p.Sets {
		v = v.With(x)
	}
	return v
}

// Keeper keeps the views of one process. It is not safe for concurrent use.
type Keeper struct {
	stateDir string

	last view.View // as kept
	name string    // the file that ends with it
	size int64     // of that file
	room int64     // for changes in it
}

// NewKeeper returns the keeper of a state directory; without one it keeps nothing.
func NewKeeper(stateDir string) *Keeper { return &Keeper{stateDir: stateDir} }

// Kept returns the view that was kept last.
func (k *Keeper) Kept() view.View { return k.last }

// Save keeps a view durably. It does not keep who leads: that is no longer true when
// it is read.
func (k *Keeper) Save(v view.View) error {
	if k.stateDir == "" {
		return nil
	}
	if p := changes(k.last, v, k.room); p != nil {
		line, err := seal(p)
		if err != nil {
			return err
		}
		if n := int64(len(line)); n <= k.room && files.Append(k.name, k.size, line) == nil {
			k.last, k.size, k.room = v, k.size+n, k.room-n
			return nil
		}
	}
	line, err := seal(changes(view.View{}, v, -1)) // all of it, into a new file
	if err != nil {
		return err
	}
	names := Files(k.stateDir)
	seq := 1
	if len(names) > 0 {
		last, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(names[0]), "view-"))
		seq = last + 1
	}
	name := filepath.Join(directory(k.stateDir), fmt.Sprintf("view-%09d", seq))
	if err := files.Save(name, line); err != nil {
		return fmt.Errorf("save last known good: %w", err)
	}
	k.last, k.name, k.size = v, name, int64(len(line))
	k.room = max(k.size, changesAtLeast)
	for i, n := range names {
		if i >= filesKept-1 {
			_ = os.Remove(n)
		}
	}
	return nil
}

// changes returns what v changes in a view with the same sources; all of v when that
// view is empty. nil: the sources differ, or it would be more than limit bytes. A
// negative limit is none.
func changes(from, v view.View, limit int64) *step {
	p := &step{Saved: time.Now().UTC()}
	size := int64(0)
	was, all := keptSources(from), keptSources(v)
	if len(was) > 0 && !slices.Equal(was, all) || len(was) == 0 && limit >= 0 {
		return nil
	}
	for _, s := range all {
		old := from.Get(s)
		if v.Get(s) == old {
			continue
		}
		switch u := v.Get(s).(type) {
		case *view.Tree:
			t := savedTree{
				Tree: view.Tree{Name: u.Name, Path: u.Path, Generation: u.Generation, Layout: u.Layout, Digest: u.Digest, Last: u.Last},
				Keys: map[string][]byte{},
			}
			var keys *view.Keys
			if o, ok := old.(*view.Tree); ok {
				keys = o.Keys()
			}
			keys.Diff(u.Keys(), func(path string, _, now *view.Key) {
				size += int64(len(path))
				if now == nil {
					t.Gone = append(t.Gone, path)
					return
				}
				if size += int64(len(now.Value)); limit < 0 || size <= limit {
					t.Keys[path] = now.Value
				}
			})
			p.Trees = append(p.Trees, t)
		case *view.Group:
			p.Groups = append(p.Groups, u)
		case *view.Groups:
			p.Sets = append(p.Sets, u)
		}
	}
	if limit >= 0 && size > limit {
		return nil
	}
	return p
}

// keptSources lists the sources of a view that are kept, in order.
func keptSources(v view.View) []view.Source {
	return slices.DeleteFunc(v.Sources(), func(s view.Source) bool { return s.Kind == view.KindElection })
}

// seal returns the line of a step. The first line of a file and the later ones look
// alike: magic, checksum, line feed, JSON, line feed.
func seal(p *step) ([]byte, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	line := make([]byte, 0, len(magic)+2*len(sum)+2+len(body))
	line = append(line, magic...)
	line = hex.AppendEncode(line, sum[:])
	line = append(line, '\n')
	line = append(line, body...)
	return append(line, '\n'), nil
}

func directory(stateDir string) string { return filepath.Join(stateDir, "lastgood") }

// Files lists the kept files, latest first.
func Files(stateDir string) []string {
	names, _ := filepath.Glob(filepath.Join(directory(stateDir), "view-[0-9]*"))
	slices.Reverse(names) // Their numbers have nine digits.
	return names
}

// Load reads the latest file of the state directory that begins with a sound view;
// nil without an error when there is none.
func Load(stateDir string) (*View, error) {
	if stateDir == "" {
		return nil, nil //nolint:nilnil // nothing kept is not an error.
	}
	var errs []error
	for _, name := range Files(stateDir) {
		data, err := files.ReadNamed(name, maxFile)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p, rest, err := openSealed(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(name), err))
			continue
		}
		// Steps that are not whole, as a power loss leaves them, and what follows them, do
		// not count.
		g := &View{}
		for ; err == nil; p, rest, err = openSealed(rest) {
			g.View, g.Saved = p.after(g.View), p.Saved
		}
		return g, nil
	}
	return nil, errors.Join(errs...)
}

// openSealed reads the first step of data; it checks the sum before it believes a byte. It
// returns what follows.
func openSealed(data []byte) (*step, []byte, error) {
	head, rest, ok := bytes.Cut(data, []byte("\n"))
	want, found := strings.CutPrefix(string(head), magic)
	if !ok || !found {
		return nil, nil, errors.New("not a last known good file")
	}
	body, rest, _ := bytes.Cut(rest, []byte("\n"))
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != want {
		return nil, nil, errors.New("checksum does not match")
	}
	p := new(step)
	if err := json.Unmarshal(body, p); err != nil {
		return nil, nil, err
	}
	return p, rest, nil
}
