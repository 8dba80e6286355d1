package registry

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// Random formats of one's own, on names and data of somebody hostile: what is read keeps the
// rules of every other format, and what is not read is an error.
func TestFields_OddSpecs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	places := []string{"name", "data", "$.a", "$.b", "$.a.b", "$.a.b.c", "#1", "#1.2", "#2", "$.\x1b", "#0", "$..", "#99999999999", "$.a[0]"}
	exprs := []string{"", "", "", "(.*)", "(?P<id>[^-]*)-(.*)", "(?P<name>[^:]*):?(.*)", "(a|b)*?c?(.*)", "^(\\S+)$", "()", "((((.*))))", "("}
	values := []any{
		"10.0.0.1:80", "host", "x;}\n", "\x1b[2J", "$(id)", -1, 1e300, 80, "80", "99999999999999999999", true, nil,
		[]any{"10.0.0.1"},
		"a-10.0.0.1:80",
		map[string]any{"b": map[string]any{"c": "10.0.0.1:1"}},
		"http://u:p@10.0.0.1:99/x?y", "[::1]:80", "::1", "a\u202eb", strings.Repeat("a", 300), "-rf", "%[env(X)]", "",
	}
	name := regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	pick := func() any { return values[r.IntN(len(values))] }
	place := func() string { return places[r.IntN(len(places))] }
	maybe := func() string { return []string{"", "", place()}[r.IntN(3)] }
	read := 0
	for range testhelp.Rounds(5_000, 100_000) {
		f := Fields{Address: place(), Match: exprs[r.IntN(len(exprs))], Only: exprs[r.IntN(len(exprs))], Port: maybe(), Weight: maybe(), Status: maybe(), ID: maybe()}
		if r.IntN(3) == 0 {
			f.Labels = map[string]string{fmt.Sprint(pick()): place()}
		}
		format, err := f.Format()
		if err != nil {
			continue
		}
		data := fmt.Append(nil, pick())
		if r.IntN(2) == 0 {
			data, _ = json.Marshal(map[string]any{"a": pick(), "b": pick()})
		}
		m, err := Decode(format, strings.ReplaceAll(fmt.Sprint(pick()), "/", "_"), data)
		if err != nil {
			continue
		}
		read++
		_, err = ParseHost(m.Host)
		bad := err != nil || m.Port < 0 || m.Port > 65535 || m.Weight < 0 || m.ID != "" && !name.MatchString(m.ID) || strings.ContainsAny(m.Name, "\n\x1b\u202e")
		for k, v := range m.Labels {
			bad = bad || strings.ContainsAny(k+v, "\n\x1b\u202e")
		}
		if bad {
			t.Fatalf("%q of %q gives %+v", format, data, m)
		}
	}
	if read < testhelp.Rounds(5, 100) {
		t.Errorf("only %d members were read", read)
	}
}
