// Package lastgood keeps the views that an agent has applied, for a start without
// ZooKeeper. A file is read only when its checksum holds; the newest that is
// sound counts.
package lastgood

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/view"
)

// viewsKept is how many last known good views are kept.
const viewsKept = 5

const magic = "zkagent-lastgood 1 "

// View is a view that was applied, and what was rendered from it.
type View struct {
	Saved  time.Time         `json:"saved"`
	Trees  []savedTree       `json:"trees,omitempty"`
	Groups []*view.Group     `json:"groups,omitempty"`
	Sets   []*view.Groups    `json:"sets,omitempty"`
	Files  map[string]string `json:"files,omitempty"` // destination -> sha256 of what was written
}

// savedTree is a config tree with its keys.
type savedTree struct {
	Tree view.Tree         `json:"tree"`
	Keys map[string][]byte `json:"keys"`
}

// Of takes what can be kept out of a view. Who leads is not kept:
// it is not true any more when it is read.
func Of(v view.View, files map[string]string) *View {
	g := &View{Saved: time.Now().UTC(), Files: files}
	for _, s := range v.Sources() {
		switch u := v.Get(s).(type) {
		case *view.Tree:
			keys := make(map[string][]byte, u.Len())
			u.Walk("", func(p string, k view.Key) bool { keys[p] = k.Value; return true })
			t := view.Tree{Name: u.Name, Path: u.Path, Generation: u.Generation, Layout: u.Layout, Digest: u.Digest, Last: u.Last}
			g.Trees = append(g.Trees, savedTree{t, keys})
		case *view.Group:
			g.Groups = append(g.Groups, u)
		case *view.Groups:
			g.Sets = append(g.Sets, u)
		}
	}
	return g
}

// Updates returns the views as updates.
func (g *View) Updates() []view.Update {
	var us []view.Update
	for _, t := range g.Trees {
		us = append(us, view.NewTree(t.Tree, view.KeysOf(t.Keys)))
	}
	for _, x := range g.Groups {
		us = append(us, x)
	}
	for _, x := range g.Sets {
		us = append(us, x)
	}
	return us
}

func directory(stateDir string) string { return filepath.Join(stateDir, "lastgood") }

// Save writes a new file and removes the oldest beyond the five. Without a state
// directory it keeps nothing.
func Save(stateDir string, g *View) error {
	if stateDir == "" {
		return nil
	}
	dir := directory(stateDir)
	body, err := json.Marshal(g)
	if err != nil {
		return err
	}
	names := Files(stateDir)
	seq := 1
	if len(names) > 0 {
		seq = sequence(names[0]) + 1
	}
	sum := sha256.Sum256(body)
	data := append([]byte(magic+hex.EncodeToString(sum[:])+"\n"), body...)
	if err := files.Save(filepath.Join(dir, fmt.Sprintf("view-%09d", seq)), data); err != nil {
		return fmt.Errorf("save last known good: %w", err)
	}
	for i, n := range names {
		if i >= viewsKept-1 {
			_ = os.Remove(n)
		}
	}
	return nil
}

// Files lists the kept files, newest first.
func Files(stateDir string) []string {
	names, _ := filepath.Glob(filepath.Join(directory(stateDir), "view-[0-9]*"))
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(sequence(b), sequence(a)) })
	return names
}

func sequence(name string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(name), "view-"))
	return n
}

// Load reads the newest file of the state directory whose checksum
// holds; nil without an error when there is none.
func Load(stateDir string) (*View, error) {
	if stateDir == "" {
		return nil, nil //nolint:nilnil // nothing kept is not an error.
	}
	var errs []error
	for _, name := range Files(stateDir) {
		data, err := os.ReadFile(name) //nolint:gosec // below our state directory.
		if err != nil {
			errs = append(errs, err)
			continue
		}
		g, err := Decode(data)
		if err == nil {
			return g, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(name), err))
	}
	return nil, errors.Join(errs...)
}

// Decode reads a file; it checks the sum before it believes a byte.
func Decode(data []byte) (*View, error) {
	head, body, ok := bytes.Cut(data, []byte("\n"))
	want, found := strings.CutPrefix(string(head), magic)
	if !ok || !found {
		return nil, errors.New("not a last known good file")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != want {
		return nil, errors.New("checksum does not match")
	}
	g := new(View)
	if err := json.Unmarshal(body, g); err != nil {
		return nil, err
	}
	return g, nil
}
