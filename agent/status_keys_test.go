package agent

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/show"
)

// snake is a key of our JSON.
var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// TestStatus_KeysInSnakeCase: every key of the status, however deep, members of
// groups included, is spelled alike.
func TestStatus_KeysInSnakeCase(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type)
	look = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			look(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[typ] || typ == reflect.TypeFor[time.Time]() {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported() && !f.Anonymous || key == "-":
				continue
			case !f.Anonymous && !snake.MatchString(key):
				t.Errorf("%v.%s has the key %q", typ, f.Name, key)
			}
			look(f.Type)
		}
	}
	look(reflect.TypeFor[show.Status]())
	look(reflect.TypeFor[fleet.Record]())
	if len(seen) < 10 {
		t.Errorf("looked at %d types only", len(seen))
	}
}
