package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/tmpltest"
	"github.com/zkagent/zkagent/view"
)

// TestJSON_Durations: a duration in a document is a number of seconds, in a field
// whose name says so.
func TestJSON_Durations(t *testing.T) {
	var walk func(reflect.Type, string, map[reflect.Type]bool)
	walk = func(typ reflect.Type, path string, seen map[reflect.Type]bool) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(typ.Elem(), path, seen)
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[typ] {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" || !f.IsExported() {
				continue
			}
			at := path + "." + name
			switch {
			case f.Type == reflect.TypeFor[time.Duration]():
				t.Errorf("%s (%s) is a time.Duration: nanoseconds", at, f.Name)
			case f.Type == reflect.TypeFor[view.Seconds]() != strings.HasSuffix(name, "_seconds"):
				t.Errorf("%s (%s) is %s", at, f.Name, f.Type)
			}
			walk(f.Type, at, seen)
		}
	}
	for _, doc := range []any{show.Status{}, tmpltest.Result{}, fleet.HostStatus{}} {
		walk(reflect.TypeOf(doc), reflect.TypeOf(doc).Name(), map[reflect.Type]bool{})
	}
	data, err := json.Marshal(proposalJSON(fleet.Proposal{Version: 7, Strategy: fleet.Strategy{
		Parallel: 2, Bake: fleet.Duration(90 * time.Second), Grace: fleet.Duration(time.Minute), Gate: "/services/web",
	}}))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Version  int
		Strategy map[string]any
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"parallel": 2.0, "max_failures": 0.0, "bake_seconds": 90.0, "pause_seconds": 0.0, "vote_timeout_seconds": 0.0, "grace_seconds": 60.0, "gate": "/services/web",
	}
	if got.Version != 7 || !reflect.DeepEqual(got.Strategy, want) {
		t.Errorf("got %s", data)
	}
}
