package condition

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var opened = regexp.MustCompile(`[cC]ond(?:s|itions)\.(?:Open|OpenWith|Set)\(\s*"([a-z-]+)"`)

// TestCatalog_IsWhole: every code that the agent opens is described, no other
// is, and the descriptions are sentences.
func TestCatalog_IsWhole(t *testing.T) {
	files, _ := filepath.Glob("../../agent/*.go")
	engines, _ := filepath.Glob("../*/*.go")
	files = append(files, engines...)
	var want []string
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range opened.FindAllStringSubmatch(string(text), -1) {
			want = append(want, m[1])
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	var got []string
	for _, e := range Catalog() {
		got = append(got, e.Code)
		for _, s := range []string{e.Meaning, e.Use, e.Do} {
			if !strings.HasSuffix(s, ".") {
				t.Errorf("%s: %q is no sentence", e.Code, s)
			}
		}
	}
	for _, code := range slices.Concat(failing, withOutput) {
		if !slices.Contains(got, code) {
			t.Errorf("%s is not in the catalog", code)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got codes %q, want those that the agent opens, in order: %q", got, want)
	}
}
