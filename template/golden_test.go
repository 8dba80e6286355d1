package template

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden renders testdata/golden/*.tmpl with the example view.
func TestGolden(t *testing.T) {
	sources, err := filepath.Glob("testdata/golden/*.tmpl")
	if err != nil || len(sources) == 0 {
		t.Fatal("there are no templates", err)
	}
	v := viewOfExamples()
	for _, name := range sources {
		t.Run(filepath.Base(name), func(t *testing.T) {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := render(t, Config{Name: filepath.Base(name), Source: string(source)}, &v, nil)
			if err != nil {
				got = "error: " + err.Error() + "\n"
			}
			golden := strings.TrimSuffix(name, ".tmpl") + ".golden"
			if *update {
				if err = os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
