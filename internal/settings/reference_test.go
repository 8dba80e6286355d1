package settings

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
)

// referenceFile is the page that is made of the tags.
const referenceFile = "../../docs/reference/settings.md"

func TestReference(t *testing.T) { golden(t, referenceFile, Reference()) }

// TestExamples: each block of the reference has an example, and they are valid.
func TestExamples(t *testing.T) {
	for f := range tagged(reflect.TypeFor[root]()) {
		if example(tagName(f)) == "" {
			t.Errorf("examples.hcl has no block %s", tagName(f))
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
	seen := map[reflect.Type]bool{}
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		for f, kind := range tagged(typ) {
			if kind == "block" {
				if f.Tag.Get("doc") == "" {
					t.Errorf("%s.%s has no doc", typ.Name(), f.Name)
				}
				check(blockType(f.Type))
			}
			if f.Type != reflect.TypeFor[hcl.Expression]() {
				continue
			}
			ru := ruleOf(f)
			if ru.is == "" || ru.doc == "" || !strings.HasSuffix(ru.doc, ".") {
				t.Errorf("%s.%s: got is %q, doc %q", typ.Name(), f.Name, ru.is, ru.doc)
			}
			for _, text := range []string{ru.def, ru.min, ru.max} {
				if ru.is == "duration" && text != "" {
					_ = must(parseDuration, text)
				}
			}
		}
	}
	check(reflect.TypeFor[root]())
	for _, typ := range checkTypes {
		check(typ)
	}
}
