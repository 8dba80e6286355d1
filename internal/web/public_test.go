package web

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
)

// shownToAll are the texts of a status that every local user may read. A new field
// is not among them: decide here, and leave out in public.go what a command prints.
const shownToAll = `
Agent.Host Agent.ID Agent.Maintenance.Reason Agent.State Agent.StateDir Agent.Version Conditions.Code Conditions.Subject Conditions.Text
Configs.Error Configs.Status.Digest Configs.Status.Layout Configs.Status.Name Configs.Status.Path Configs.Status.Waiting Elections.Leader.ID
Elections.Leader.Name Elections.Leader.Path Execs.Name Execs.Restarts Execs.State GroupSets.Error GroupSets.Groups.Error
GroupSets.Groups.Flapping GroupSets.Groups.Members.Host GroupSets.Groups.Members.ID GroupSets.Groups.Members.Labels
GroupSets.Groups.Members.Labels.key GroupSets.Groups.Members.Name GroupSets.Groups.Members.Node GroupSets.Groups.Members.Ports.key
GroupSets.Groups.Members.RawLabels GroupSets.Groups.Members.RawLabels.key GroupSets.Groups.Members.Status GroupSets.Groups.Members.Znode
GroupSets.Groups.Name GroupSets.Groups.Path GroupSets.Groups.Rejected.Reason GroupSets.Groups.Rejected.Znode GroupSets.Name GroupSets.Path
Groups.Error Groups.Flapping Groups.Members.Host Groups.Members.ID Groups.Members.Labels Groups.Members.Labels.key Groups.Members.Name
Groups.Members.Node Groups.Members.Ports.key Groups.Members.RawLabels Groups.Members.RawLabels.key Groups.Members.Status
Groups.Members.Znode Groups.Members.LabelsLeftOut Groups.Out.Address Groups.Out.ID Groups.Out.Node Groups.Out.State
GroupSets.Groups.Members.LabelsLeftOut GroupSets.Groups.Out.Address GroupSets.Groups.Out.ID GroupSets.Groups.Out.Node GroupSets.Groups.Out.State
Groups.Name Groups.Path Groups.Rejected.Reason Groups.Rejected.Znode Health Hooks.Leader Hooks.Name Hooks.Runs.Event
Hooks.Runs.Signal Hooks.Runs.State Hooks.Schedule Hooks.Triggers Services.Address Services.Checks.Kind Services.Checks.Name Services.Error
Services.Format Services.Groups Services.Maintenance.Reason Services.Name Services.Nodes Services.State Settings.Error Settings.Files
Settings.Hash Sources.Kind Sources.Name Sources.Path Sources.Version Summary Templates.Files Templates.Name Templates.Position
Elections.Leader.RawID Elections.Leader.Znode Templates.Check Templates.PendingText Templates.Sources Templates.Stage Templates.State Templates.Version ZooKeeper.LastError ZooKeeper.Outages.Reason ZooKeeper.Server ZooKeeper.SessionID ZooKeeper.State
ZooKeeper.Warning
`

// planted fills every text of a value with its own place, and every list and map
// with one element.
func planted(v reflect.Value, place string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(place)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		planted(v.Elem(), place)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		planted(v.Index(0), place)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		planted(key, place+".key")
		planted(value, place)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type.String() != "time.Time" {
				planted(v.Field(i), place+"."+f.Name)
			}
		}
	default: // No text.
	}
}

// TestPublic_EveryTextIsDecided: each text of a status either is for everybody, by
// the list here, or is left out.
func TestPublic_EveryTextIsDecided(t *testing.T) {
	var st show.Status
	planted(reflect.ValueOf(&st).Elem(), "Status")
	src := &still{http: &HTTPConfig{}, status: st}
	data, err := json.Marshal(newServer(src).public().status())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, text := range texts(string(data)) {
		place, _, _ := strings.Cut(strings.TrimPrefix(text, "Status."), " ") // before words of ours
		got = append(got, place)
	}
	slices.Sort(got)
	got = slices.Compact(got)
	want := strings.Fields(shownToAll)
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s is shown to everybody, and not in the list", g)
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s is in the list, and not shown", w)
		}
	}
}

// texts are the planted texts in a document.
func texts(s string) []string {
	var list []string
	for part := range strings.SplitSeq(s, `"`) {
		if strings.HasPrefix(part, "Status.") {
			list = append(list, part)
		}
	}
	return list
}
