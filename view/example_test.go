package view_test

import (
	"encoding/json"
	"fmt"
	"os"
	"text/template"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Keys never change: an edit gives other ones, and shares what is equal.
func ExampleKeys() {
	before := view.KeysOf(map[string][]byte{"color": []byte("green"), "size": []byte("7")})
	edit := before.Edit()
	edit.Set("color", view.Key{Value: []byte("blue")})
	edit.Delete("size")
	after := edit.Done()
	before.Diff(after, func(path string, _, now *view.Key) {
		fmt.Println(path, now == nil)
	})
	fmt.Println(before.Len(), after.Len())
	// Output:
	// color false
	// size true
	// 2 1
}

// A function that changes some keys takes the edit: it sees its own changes so far.
func ExampleKeysEdit() {
	rename := func(edit *view.KeysEdit, from, to string) {
		if key, ok := edit.Get(from); ok {
			edit.Set(to, key)
			edit.Delete(from)
		}
	}
	keys := view.KeysOf(map[string][]byte{"colour": []byte("green"), "size": []byte("7")})
	edit := keys.Edit()
	rename(edit, "colour", "color")
	rename(edit, "colour", "hue") // it is gone
	for path, key := range edit.Done().All() {
		fmt.Printf("%s = %s\n", path, key.Value)
	}
	// Output:
	// color = green
	// size = 7
}

// Successive trees share the chunks that did not change, so a program keeps a result for each chunk.
func ExampleChunk() {
	keys := map[string]string{}
	for i := range 1000 {
		keys[fmt.Sprintf("limits/%04d", i)] = "10"
	}
	before := view.TreeOf("web", "/config/web", keys)
	edit := before.Keys().Edit()
	edit.Set("limits/0500", view.Key{Value: []byte("100")})
	after := view.NewTree(view.Tree{Name: "web", Path: "/config/web", Generation: 2}, edit.Done())

	counted, sizes := 0, map[view.Chunk]int{}
	for _, tree := range []*view.Tree{before, after} {
		total := 0
		for chunk := range tree.Chunks("limits") {
			if _, ok := sizes[chunk]; !ok {
				counted++
				for _, key := range chunk.Keys() {
					sizes[chunk] += len(key.Value)
				}
			}
			total += sizes[chunk]
		}
		fmt.Println("bytes:", total, "chunks counted:", counted)
	}
	// Output:
	// bytes: 2000 chunks counted: 8
	// bytes: 2001 chunks counted: 9
}

// A view collects the latest state of each source. It never changes: With and Without return other views.
func ExampleView() {
	empty := view.View{Agent: view.Agent{ID: "web-1", Host: "web-1.example.org"}}
	now := empty
	for _, update := range []view.Update{
		view.TreeOf("site", "/config/site", map[string]string{"color": "blue"}),
		&view.Group{Name: "api", Path: "/services/api", Members: []view.Member{{ID: "api-1", Host: "10.0.0.5", Port: 80}}},
		&view.Leader{Name: "worker", Path: "/elections/worker", ID: "web-2", Term: 17},
	} {
		now = now.With(update)
	}
	fmt.Println(len(empty.Sources()), now.Sources())
	tree, _ := now.Tree("site")
	color, _ := tree.Get("color")
	leader, _ := now.Leader("worker")
	fmt.Printf("%s, led by %s\n", color.Value, leader.ID)
	fmt.Println("not yet:", now.Missing(view.Source{Kind: view.KindGroup, Name: "api"}, view.Source{Kind: view.KindGroup, Name: "db"}))
	// Output:
	// 0 [config.site election.worker group.api]
	// blue, led by web-2
	// not yet: [group.db]
}

// The kind and the name of a source are how settings and JSON refer to it.
func ExampleSource() {
	for _, kind := range []view.Kind{view.KindConfig, view.KindElection} {
		source := view.Source{Kind: kind, Name: "web"}
		data, err := json.Marshal(source)
		fmt.Println(source, string(data), err)
	}
	// Output:
	// config.web {"kind":"config","name":"web"} <nil>
	// election.web {"kind":"election","name":"web"} <nil>
}

// A set has its groups in order of their names. Names that other programs chose badly are listed, and are no groups.
func ExampleGroups() {
	services := &view.Groups{
		Name: "services", Path: "/services",
		Groups: []*view.Group{
			{Name: "api", Path: "/services/api", Members: []view.Member{{Host: "10.0.0.5", Port: 80}}},
			{Name: "db", Path: "/services/db"},
		},
		RawNames: []string{"web server {"},
	}
	for _, group := range services.Groups {
		fmt.Println(group.Name, len(group.Members))
	}
	_, ok := services.Group("web")
	fmt.Println(ok, view.IsName(services.RawNames[0]))
	// Output:
	// api 1
	// db 0
	// false false
}

// A group says which children were rejected, and why members do not serve.
func ExampleGroup() {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.Local)
	group := &view.Group{
		Name: "web", Path: "/services/web",
		Rejected: []view.Rejected{{Znode: "web-7", Reason: "data is not a JSON object"}},
		Out: []view.Standing{
			{ID: "web-2", State: view.StandingHeld, Since: noon, Until: noon.Add(10 * time.Minute), Serves: true},
			{ID: "web-3", State: view.StatusMaintenance, Since: noon},
		},
	}
	for _, child := range group.Rejected {
		fmt.Println(child.Znode, "is no member:", child.Reason)
	}
	for _, member := range group.Out {
		fmt.Printf("%s (serves %t): %s\n", member.ID, member.Serves, member)
	}
	// Output:
	// web-7 is no member: data is not a JSON object
	// web-2 (serves true): gone from ZooKeeper with many others since 12:00:00: it is kept until 12:10:00
	// web-3 (serves false): out since 12:00:00: maintenance
}

// Labels that are no tokens could mean something in a file. A template gets them only by the name RawLabels, and quotes them.
func ExampleMember() {
	m := view.Member{ID: "web-1", Host: "fd00::5", Port: 80, Status: view.StatusUp}
	m.SetLabels(map[string]string{"zone": "north", "canary": "true", "note": "ask Ann; then } restart"})
	fmt.Println(m.Address(), m.MayServe(), m.Tags(), m.Meta())
	page := template.Must(template.New("page").Parse("labels {{.Labels}} {{.RawLabels}}note {{printf \"%q\" .RawLabels.note}}\n"))
	if err := page.Execute(os.Stdout, m); err != nil {
		panic(err)
	}
	// Output:
	// [fd00::5]:80 true [canary] map[zone:north]
	// labels map[canary:true zone:north] note "ask Ann; then } restart"
}

// A raw text quotes data of other programs. It prints as nothing until the program converts it.
func ExampleRawText() {
	m := view.Member{ID: "web-1", RawLabels: view.RawLabels{"note": "a } b"}, LabelsLeftOut: view.RawText(`port "ht}tp": not a name`)}
	fmt.Printf("[%v] [%v]\n", m.RawLabels, m.LabelsLeftOut)
	fmt.Println(string(m.LabelsLeftOut))
	// Output:
	// [] []
	// port "ht}tp": not a name
}

// A word of people selects members by their status.
func ExampleWithStatus() {
	members := []view.Member{{ID: "a", Status: view.StatusUp}, {ID: "b", Status: view.StatusDraining}}
	for _, word := range []string{"", view.StatusDraining, view.StatusAny, "drained"} {
		chosen, ok := view.WithStatus(members, word)
		fmt.Printf("%q %d %t\n", word, len(chosen), ok)
	}
	// Output:
	// "" 1 true
	// "draining" 1 true
	// "any" 2 true
	// "drained" 0 false
}

// JSON documents have durations as numbers of seconds.
func ExampleSeconds() {
	status := struct {
		Took view.Seconds `json:"took_seconds"`
	}{view.Seconds(1500 * time.Millisecond)}
	data, err := json.Marshal(status)
	fmt.Println(string(data), err)
	err = json.Unmarshal([]byte(`{"took_seconds": 90}`), &status)
	fmt.Println(status.Took, err)
	// Output:
	// {"took_seconds":1.5} <nil>
	// 1m30s <nil>
}
