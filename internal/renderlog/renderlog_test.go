package renderlog

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func add(t *testing.T, s *Store, r Record, size int64) {
	t.Helper()
	if err := s.Add("web/site", r, size); err != nil {
		t.Fatal(err)
	}
}

// Random records: the store stays below its bound, it has the newest record, and other
// users cannot read it.
func TestStore_Bounded(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	r := rand.New(rand.NewPCG(1, 1))
	const size = 20_000
	for i := range 300 {
		text := fmt.Sprintf("%d %s", i, strings.Repeat("x", r.IntN(6000)))
		add(t, s, Record{Version: fmt.Sprint(i), Files: []File{{Path: "/a", Data: []byte(text), Size: len(text)}}}, size)
		list, err := s.List("web/site")
		if err != nil || len(list) == 0 || string(list[0].Files[0].Data) != text || len(list) > maxRecords {
			t.Fatalf("after %d: %d records, %v", i, len(list), err)
		}
	}
	total := int64(0)
	err := filepath.WalkDir(filepath.Join(dir, "renders"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if !d.IsDir() {
			total += info.Size()
		}
		return nil
	})
	if err != nil || total > size || total < size/2 {
		t.Errorf("%d bytes are kept, %v", total, err)
	}
}

// What is there already is not kept again, and a failure that repeats itself once.
func TestStore_News(t *testing.T) {
	s := New(t.TempDir())
	files := func(a, b string) []File {
		return []File{{Path: "/a", Data: []byte(a)}, {Path: "/b", Data: []byte(b)}}
	}
	add(t, s, Record{Files: files("1", "1")}, 1<<20)
	add(t, s, Record{Files: files("1", "1")}, 1<<20)
	add(t, s, Record{Files: files("1", "2")}, 1<<20)
	add(t, s, Record{Error: "check failed"}, 1<<20)
	add(t, s, Record{Error: "check failed"}, 1<<20)
	add(t, s, Record{Files: files("1", "2")}, 1<<20)
	add(t, s, Record{Files: []File{{Path: "/a", Gone: true}}}, 1<<20)
	list, err := s.List("web/site")
	if err != nil || len(list) != 4 || len(list[2].Files) != 1 || list[2].Files[0].Path != "/b" || list[1].Error == "" || !list[0].Files[0].Gone {
		t.Errorf("got %+v, %v", list, err)
	}
	big := strings.Repeat("x", 5000)
	add(t, s, Record{Files: files(big, "2")}, 2000)
	if list, err = s.List("web/site"); err != nil || !list[0].Files[0].Dropped || list[0].Files[0].Data != nil {
		t.Errorf("got %+v, %v", list[0], err)
	}
	add(t, s, Record{Files: files("3", "3")}, 0)
	if more, _ := s.List("web/site"); len(more) != len(list) {
		t.Error("a bound of 0 keeps nothing")
	}
}

// A file that was cut off, or that is not ours, is left out.
func TestStore_Damage(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	add(t, s, Record{Files: []File{{Path: "/a", Data: []byte("1")}}}, 1<<20)
	at := s.path("web/site")
	for name, data := range map[string]string{"000000002": `{"time":`, "notes": "mine"} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add(t, s, Record{Files: []File{{Path: "/a", Data: []byte("1")}}}, 1<<20) // as in the record before the damaged one
	if list, err := s.List("web/site"); err != nil || len(list) != 1 {
		t.Errorf("got %+v, %v", list, err)
	}
	add(t, s, Record{Files: []File{{Path: "/a", Data: []byte("2")}}}, 1<<20)
	list, err := s.List("web/site")
	if err != nil || len(list) != 2 || string(list[0].Files[0].Data) != "2" {
		t.Errorf("got %+v, %v", list, err)
	}
	if list, err := New("").List("web"); list != nil || err != nil {
		t.Errorf("got %v, %v", list, err)
	}
}

// Small records are bounded by their number. What was dropped is written again when it
// fits, and the newest of two records of a file counts.
func TestStore_SmallRecords(t *testing.T) {
	s := New(t.TempDir())
	for i := range maxRecords + 7 {
		add(t, s, Record{Files: []File{{Path: "/a", Data: []byte(fmt.Sprint(i))}}}, 1<<20)
	}
	list, err := s.List("web/site")
	if err != nil || len(list) != maxRecords || string(list[0].Files[0].Data) != fmt.Sprint(maxRecords+6) {
		t.Errorf("%d records, %v", len(list), err)
	}
	big := strings.Repeat("x", 3000)
	add(t, s, Record{Files: []File{{Path: "/b", Data: []byte(big), Size: len(big)}}}, 2000)
	add(t, s, Record{Files: []File{{Path: "/b", Data: []byte(big), Size: len(big)}}}, 1<<20)
	add(t, s, Record{Files: []File{{Path: "/b", Data: []byte("1")}}}, 1<<20)
	add(t, s, Record{Files: []File{{Path: "/b", Data: []byte(big)}}}, 1<<20)
	if list, err = s.List("web/site"); err != nil || !list[3].Files[0].Dropped || list[2].Files[0].Dropped || string(list[0].Files[0].Data) != big {
		t.Errorf("got %+v, %v", list[:4], err)
	}
	// A file that was dropped, and then was emptied, is news.
	add(t, s, Record{Files: []File{{Path: "/d", Data: []byte(big), Size: len(big)}}}, 2000)
	add(t, s, Record{Files: []File{{Path: "/d"}}}, 1<<20)
	if list, err = s.List("web/site"); err != nil || list[0].Files[0].Dropped || !list[1].Files[0].Dropped {
		t.Errorf("got %+v, %v", list[:2], err)
	}
	// An empty file is a file: it comes and goes.
	add(t, s, Record{Files: []File{{Path: "/c"}}}, 1<<20)
	add(t, s, Record{Files: []File{{Path: "/c", Gone: true}}}, 1<<20)
	add(t, s, Record{Files: []File{{Path: "/c"}}}, 1<<20)
	if list, err = s.List("web/site"); err != nil || list[0].Files[0].Gone || !list[1].Files[0].Gone || list[2].Files[0].Gone {
		t.Errorf("got %+v, %v", list[:3], err)
	}
	// A record that does not fit even without its content is not kept.
	if err := s.Add("web/site", Record{Error: big}, 2000); err != nil {
		t.Error(err)
	}
	if more, _ := s.List("web/site"); more[0].Error != "" {
		t.Error("a record over the bound is kept")
	}
}
