// Package renderlog records what each template wrote lately: the bytes, the cause
// of the change and the result. It can show what a file looked like yesterday.
//
// Guarantees: only the agent's user can read the records, independent of the modes
// of the rendered files. The records of a bundle stay within the bound; the oldest
// go first. A record is complete or absent.
package renderlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

const maxRecords = 100

// Record is one apply that changed files, or failed.
type Record struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version,omitempty"` // of the config, if the bundle uses one
	// Changes says in words which sources changed since the previous apply.
	Changes []string      `json:"changes,omitempty"`
	Took    time.Duration `json:"took"`
	Stage   string        `json:"stage,omitempty"` // that failed
	Error   string        `json:"error,omitempty"`
	Reload  string        `json:"reload,omitempty"` // how the latest reload ended
	Files   []File        `json:"files,omitempty"`  // that were put in place
}

// File is one file of a record.
type File struct {
	Path string `json:"path"`
	Gone bool   `json:"gone,omitempty"` // it was removed
	Size int    `json:"size"`
	Data []byte `json:"data,omitempty"`
	// Dropped says that the content was too large to keep.
	Dropped bool `json:"dropped,omitempty"`
}

// Store is the records of all bundles. It is safe for concurrent use. The zero
// value keeps nothing.
type Store struct {
	dir string

	mu sync.Mutex // mu orders the writes.
}

// New returns the store of a state directory; without one it keeps nothing.
func New(stateDir string) *Store {
	if stateDir == "" {
		return &Store{}
	}
	return &Store{dir: filepath.Join(stateDir, "renders")}
}

func (s *Store) path(bundle string) string { return filepath.Join(s.dir, files.Name(bundle)) }

// Add stores a record, and keeps at most size bytes for its bundle; 0 keeps
// nothing. It leaves out files that the latest records contain already. It does not
// store a record without news.
func (s *Store) Add(bundle string, r Record, size int64) error {
	if s.dir == "" || size <= 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := s.names(bundle)
	if err != nil {
		return err
	}
	r = s.withoutKnown(bundle, names, r)
	if r.Error == "" && len(r.Files) == 0 {
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if int64(len(data)) > size {
		for i := range r.Files {
			r.Files[i].Dropped, r.Files[i].Data = len(r.Files[i].Data) > 0, nil
		}
		if data, err = json.Marshal(r); err != nil || int64(len(data)) > size {
			return err
		}
	}
	next := 1
	if len(names) > 0 {
		last, _ := strconv.Atoi(names[0])
		next = last + 1
	}
	if err := files.Note(filepath.Join(s.path(bundle), fmt.Sprintf("%09d", next)), data); err != nil {
		return fmt.Errorf("keep a render: %w", err)
	}
	return s.prune(bundle, names, size-int64(len(data)))
}

// withoutKnown removes from a record what the latest records contain.
func (s *Store) withoutKnown(bundle string, names []string, r Record) Record {
	latest := map[string]File{} // of the paths of r
	for i, name := range names {
		if i > 0 && len(latest) == len(r.Files) {
			break
		}
		old, err := s.read(bundle, name)
		if err != nil {
			continue // Incomplete, or the file of another program.
		}
		if i == 0 && r.Error != "" && len(r.Files) == 0 && old.Error == r.Error {
			return Record{} // It fails as before.
		}
		for _, f := range old.Files {
			if _, seen := latest[f.Path]; !seen && slices.ContainsFunc(r.Files, func(n File) bool { return n.Path == f.Path }) {
				latest[f.Path] = f
			}
		}
	}
	r.Files = slices.DeleteFunc(slices.Clone(r.Files), func(n File) bool {
		was, seen := latest[n.Path]
		return seen && n.Gone == was.Gone && !was.Dropped && string(n.Data) == string(was.Data)
	})
	slices.SortFunc(r.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return r
}

// prune removes the oldest records beyond the bounds. names are the existing
// records.
func (s *Store) prune(bundle string, names []string, left int64) error {
	var errs []error
	for i, name := range names {
		path := filepath.Join(s.path(bundle), name)
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if left -= info.Size(); left < 0 || i+1 >= maxRecords {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// names are the files of the records, latest first.
func (s *Store) names(bundle string) ([]string, error) {
	entries, err := os.ReadDir(s.path(bundle))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 0 {
			names = append(names, e.Name())
		}
	}
	slices.Reverse(names) // They have nine digits.
	return names, err
}

// maxFile is how many bytes of a record are read.
const maxFile = 1 << 30

func (s *Store) read(bundle, name string) (Record, error) {
	var r Record
	data, err := files.ReadNamed(filepath.Join(s.path(bundle), name), maxFile)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// List returns the records of a bundle, latest first. It skips incomplete ones.
func (s *Store) List(bundle string) ([]Record, error) {
	if s.dir == "" {
		return nil, nil
	}
	names, err := s.names(bundle)
	if err != nil {
		return nil, err
	}
	var list []Record
	for _, name := range names {
		r, err := s.read(bundle, name)
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		if err == nil {
			list = append(list, r)
		}
	}
	return list, nil
}

// Changes says which of the sources differ between two views, and by how much.
func Changes(old, now *view.View, sources []view.Source) []string {
	var list []string
	for _, s := range sources {
		a, b := old.Get(s), now.Get(s)
		if b == nil || a == b || a != nil && a.Equal(b) {
			continue
		}
		list = append(list, s.String()+changeWords(a, b))
	}
	slices.Sort(list)
	return list
}

func changeWords(a, b view.Update) string {
	switch b := b.(type) {
	case *view.Tree:
		old, ok := a.(*view.Tree)
		if !ok {
			return fmt.Sprintf(": %s at %s", term.Count(b.Len(), "key"), b.Version())
		}
		keys, bytes := 0, 0
		old.Keys().Diff(b.Keys(), func(_ string, was, is *view.Key) {
			keys++
			if was != nil {
				bytes -= len(was.Value)
			}
			if is != nil {
				bytes += len(is.Value)
			}
		})
		return fmt.Sprintf(": %s -> %s, %s, %+d bytes", old.Version(), b.Version(), term.Count(keys, "key"), bytes)
	case *view.Group:
		old, ok := a.(*view.Group)
		if !ok {
			return ": " + term.Count(len(b.Members), "member")
		}
		return memberWords(old.Members, b.Members)
	}
	return ""
}

// memberWords says which members joined (+), left (-) and changed (~).
func memberWords(old, now []view.Member) string {
	gone := make(map[string]*view.Member, len(old))
	for i := range old {
		gone[old[i].Znode] = &old[i]
	}
	var came, words []string
	for i := range now {
		m := &now[i]
		switch was := gone[m.Znode]; {
		case was == nil:
			came = append(came, " +"+m.Address())
		case !was.Equal(*m):
			came = append(came, " ~"+m.Address())
		}
		delete(gone, m.Znode)
	}
	for _, m := range old {
		if gone[m.Znode] != nil {
			words = append(words, " -"+m.Address())
		}
	}
	words = append(words, came...)
	const most = 10
	return fmt.Sprintf(": %s,%s", term.Count(len(words), "member"), strings.Join(words[:min(len(words), most)], ""))
}
