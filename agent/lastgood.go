package agent

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

// lastGoodKept is how many last known good views are kept.
const lastGoodKept = 5

const lastGoodMagic = "zkagent-lastgood 1 "

// LastGood is a view that was applied, and what was rendered from it.
type LastGood struct {
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

// newLastGood takes what can be kept out of a view. Who leads is not kept:
// it is not true any more when it is read.
func newLastGood(v view.View, files map[string]string) *LastGood {
	g := &LastGood{Saved: time.Now().UTC(), Files: files}
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
func (g *LastGood) Updates() []view.Update {
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

// lastGoodDir is where they are kept; empty without a state directory.
func lastGoodDir(stateDir string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, "lastgood")
}

// saveLastGood writes a new file and removes the oldest beyond the five.
func saveLastGood(dir string, g *LastGood) error {
	body, err := json.Marshal(g)
	if err != nil {
		return err
	}
	names := lastGoodFiles(dir)
	seq := 1
	if len(names) > 0 {
		seq = lastGoodSeq(names[0]) + 1
	}
	sum := sha256.Sum256(body)
	data := append([]byte(lastGoodMagic+hex.EncodeToString(sum[:])+"\n"), body...)
	if err := files.Save(filepath.Join(dir, fmt.Sprintf("view-%09d", seq)), data); err != nil {
		return fmt.Errorf("save last known good: %w", err)
	}
	for i, n := range names {
		if i >= lastGoodKept-1 {
			_ = os.Remove(n)
		}
	}
	return nil
}

// lastGoodFiles lists the kept files, newest first.
func lastGoodFiles(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "view-[0-9]*"))
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(lastGoodSeq(b), lastGoodSeq(a)) })
	return names
}

func lastGoodSeq(name string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(name), "view-"))
	return n
}

// LoadLastGood reads the newest file of the state directory whose checksum
// holds; nil without an error when there is none.
func LoadLastGood(stateDir string) (*LastGood, error) {
	dir := lastGoodDir(stateDir)
	if dir == "" {
		return nil, nil //nolint:nilnil // nothing kept is not an error.
	}
	var errs []error
	for _, name := range lastGoodFiles(dir) {
		data, err := os.ReadFile(name) //nolint:gosec // below our state directory.
		if err != nil {
			errs = append(errs, err)
			continue
		}
		g, err := decodeLastGood(data)
		if err == nil {
			return g, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(name), err))
	}
	return nil, errors.Join(errs...)
}

// decodeLastGood checks the sum before it believes a byte.
func decodeLastGood(data []byte) (*LastGood, error) {
	head, body, ok := bytes.Cut(data, []byte("\n"))
	want, found := strings.CutPrefix(string(head), lastGoodMagic)
	if !ok || !found {
		return nil, errors.New("not a last known good file")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != want {
		return nil, errors.New("checksum does not match")
	}
	g := new(LastGood)
	if err := json.Unmarshal(body, g); err != nil {
		return nil, err
	}
	return g, nil
}
