package settings

import (
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
)

// referenceFile is the page that is made of the tags.
const referenceFile = "../../docs/reference/settings.md"

func TestReference(t *testing.T) { golden(t, referenceFile, Reference()) }

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
