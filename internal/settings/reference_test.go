package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// referenceFile is the page that says what the blocks take.
const referenceFile = "../../docs/reference/settings.md"

func TestReference(t *testing.T) { golden(t, referenceFile, Reference()) }

// TestExamples: each block of the reference has an example, and they are valid.
func TestExamples(t *testing.T) {
	for _, b := range describe().blocks {
		if example(b.name) == "" {
			t.Errorf("examples.hcl has no block %s", b.name)
		}
		if got := slices.Contains(labelled, b.name); got != (b.label != "") {
			t.Errorf("block %s has a label: %t, and references know it: %t", b.name, b.label != "", got)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"upstreams.conf.tmpl", "cert.tmpl", "key.tmpl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "zkagent.hcl")
	if err := os.WriteFile(file, []byte(exampleBlocks), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Load([]string{file}, Options{Offline: true}); err != nil {
		t.Errorf("examples.hcl: %v: %+v", err, s.Diagnostics)
	}
}

// TestTags: every argument says what it is and what it means, and its default
// and limits can be read.
func TestTags(t *testing.T) {
	count := 0
	var check func(*shape)
	check = func(b *shape) {
		for _, inner := range slices.Concat(b.blocks, b.kinds) {
			if inner.doc == "" {
				t.Errorf("%s in %s has no doc", inner.name, b.name)
			}
			check(inner)
		}
		for _, ru := range b.args {
			count++
			if ru.is == "" || !strings.HasSuffix(ru.doc, ".") {
				t.Errorf("%s of %s: got is %q, doc %q", ru.name, b.name, ru.is, ru.doc)
			}
			for _, text := range []string{ru.def, ru.min, ru.max} {
				if ru.is == "duration" && text != "" {
					_ = must(parseDuration, text)
				}
			}
		}
	}
	check(describe())
	if count < 150 {
		t.Errorf("only %d arguments were looked at", count)
	}
}
