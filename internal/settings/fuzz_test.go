package settings

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzLoad: no input may panic, hang, or be accepted with an error among its
// diagnostics; every diagnostic can be printed.
func FuzzLoad(f *testing.F) {
	seeds, err := filepath.Glob("testdata/invalid/*.hcl")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range append(seeds, "testdata/valid/reference/zkagent.hcl") {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(commands))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := LoadBytes(filepath.Join(dir, "fuzz.hcl"), data, testOptions())
		if (err != nil) != s.Diagnostics.HasErrors() {
			t.Errorf("got error %v and %d diagnostics", err, len(s.Diagnostics))
		}
		_ = diagnostics(t, s)
		for _, d := range s.Diagnostics {
			if d.Summary == "" {
				t.Error("got a diagnostic without a summary")
			}
		}
	})
}
