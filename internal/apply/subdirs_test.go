package apply

import (
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// TestSubdirs_FileOrDirectory: keys with slashes change, so that a name becomes a directory
// instead of a file, or a file instead of a directory, or should be both. A vote, a preview,
// an apply and `zkagent render` come to one verdict. A key that has no place loses only its
// own file, and the file in its place stays. When all such keys are gone, their files and
// directories are gone, and each key can come back.
func TestSubdirs_FileOrDirectory(t *testing.T) {
	t.Parallel()
	states := []string{"", "a", "a/b", "a/b/c", "a a/b", "a a/b/c", "a/b a/c"}
	doors := []string{"apply", "restart", "render"}
	for i, from := range states {
		for j, to := range states {
			door := doors[(i+j)%len(doors)]
			if testhelp.NotToday(from+to, 2) {
				continue
			}
			t.Run(door+" "+from+" to "+to, func(t *testing.T) {
				t.Parallel()
				newSubdirs(t, door).change(from, to)
			})
		}
	}
}

// subdirs is a for_each whose keys may have slashes.
type subdirs struct {
	*applyBed

	door string // that changes the files
	cfg  Config
	x    *testBundle
}

func newSubdirs(t *testing.T, door string) *subdirs {
	t.Helper()
	b, _ := newPlayBed(t)
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	s := &subdirs{applyBed: b, door: door, cfg: Config{Name: "each", ForEach: &web, Templates: []FileConfig{{
		Name: "each", Contents: "{{ .Value }}", AllowSubdirs: true, CreateDirs: true,
		Destination: func(e *template.Each) (string, error) { return b.path("d/" + e.Key), nil },
	}}}}
	s.x = b.bundle(s.cfg)
	return s
}

// set makes the view have the keys, and "good".
func (s *subdirs) set(keys, value string) []string {
	all := strings.Fields(keys + " good")
	m := map[string]string{}
	for _, k := range all {
		m[k] = value
	}
	s.keys(m)
	return all
}

// swap changes the files as the view wants it, and returns which keys have no place.
func (s *subdirs) swap() string {
	s.t.Helper()
	if s.door == "render" {
		_, err := s.Once(s.t.Context(), s.x.Bundle, s.view)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	text := ""
	for range 2 { // The second one finds nothing to do.
		if s.door == "restart" {
			s.Forget(s.x.Bundle)
			s.x = s.bundle(s.cfg)
		}
		before := text
		if r := s.apply(s.x); r.Err != nil {
			s.t.Error(r.Err)
		}
		var list []string
		for _, c := range s.Conds.List() {
			list = append(list, c.Name()+": "+c.Text)
		}
		slices.Sort(list)
		text = strings.Join(list, "\n")
		if before != "" && before != text {
			s.t.Errorf("an apply says %s, the next one %s", before, text)
		}
	}
	return text
}

// files are those below the directory, with their text, and the directories.
func (s *subdirs) files() map[string]string {
	s.t.Helper()
	list := map[string]string{}
	err := filepath.WalkDir(s.path("d"), func(path string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(path, s.path("d")+"/")
		switch {
		case err != nil || path == s.path("d"):
		case d.IsDir():
			list[rel+"/"] = ""
		default:
			list[rel] = read(s.t, path)
		}
		return err
	})
	if err != nil && len(list) > 0 {
		s.t.Error(err)
	}
	return list
}

// place makes the files fit the keys, from what is there, and checks what everybody says.
func (s *subdirs) place(keys, value string) {
	s.t.Helper()
	wanted, before := s.set(keys, value), s.files()
	vote := s.Try(s.t.Context(), s.x.Bundle, s.view)
	_, gone, err := s.Preview(s.t.Context(), s.x.Bundle, s.view)
	if err != nil || !maps.Equal(s.files(), before) {
		s.t.Errorf("a vote and a preview (%v) have changed %v to %v", err, before, s.files())
	}
	said, after := s.swap(), s.files()
	if (vote != nil) != (said != "") || strings.Contains(said, "something else wrote") {
		s.t.Errorf("the vote says %v, the change %s", vote, said)
	}
	for path := range before {
		_, stays := after[path]
		if removed := slices.Contains(gone, s.path("d/"+path)); !strings.HasSuffix(path, "/") && removed == stays && s.door != "render" {
			s.t.Errorf("%s: the preview says removed: %v, the change left it: %v", path, removed, stays)
		}
	}
	for _, key := range wanted {
		if refused := strings.Contains(said, s.path("d/"+key)+":"); refused == (after[key] == value) && before[key] == "" {
			s.t.Errorf("%s has %q: %s", key, after[key], said)
		}
	}
	if after["good"] != value {
		s.t.Errorf("another key has %q, want %q", after["good"], value)
	}
}

func (s *subdirs) change(from, to string) {
	s.t.Helper()
	s.place(from, "1")
	s.place(to, "2")
	s.place("", "3")
	if got := s.files(); len(got) != 1 {
		s.t.Errorf("without the keys there is %v", got)
	}
	for key := range strings.FieldsSeq(to) {
		s.place(key, "4")
		if got := s.files(); got[key] != "4" {
			s.t.Errorf("alone, %s has %v", key, got)
		}
		s.place("", "5")
	}
}
