package translate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// inventedNames are the names below a directory whose keys are computed.
var inventedNames = []string{"a", "b"}

var (
	quotedText  = regexp.MustCompile(`"([^"\n]*)"`)
	askedKeys   = regexp.MustCompile(`(?:"([^"\n]*)" *\| *)?\b(key|keyExists|keyOrDefault|ls|tree|safeLs|getv|get|gets|getvs|exists|lsdir)\b[ (]*(?:"([^"\n]*)")?`)
	askedNames  = regexp.MustCompile(`\bservice[ (]+"([^"\n]*)"`)
	printed     = regexp.MustCompile(`print((?: +(?:"[^"\n]*"|[$.(][^ ()]*|\(base [^)]*\)))+)`)
	fieldNames  = regexp.MustCompile(`\.([a-zA-Z_]\w*)`)
	isValueKey  = regexp.MustCompile(`^[\w./:+-]+$`)
	isPlainWord = regexp.MustCompile(`^[\w-]+$`)
)

// invented is data for a template that somebody else wrote: keys and services for the
// names that stand in it, with values of several kinds.
func invented(w *rand.Rand, program, text string) trial {
	t := trial{Template: text, Keys: map[string]string{}, Services: map[string][]trialMember{}}
	fields, typed := map[string]any{}, pick(w, []any{"text", "text", 12, true})
	for _, m := range fieldNames.FindAllStringSubmatch(text, -1) {
		fields[m[1]] = pick(w, []any{"f" + m[1], "f" + m[1], "10.0.0.9", typed})
	}
	object, _ := json.Marshal(fields)
	kind := w.IntN(4)
	value := func() string {
		kinds := []string{fmt.Sprint("v", w.IntN(3)), string(object), fmt.Sprint(w.IntN(90)), `["x","y"]`}
		if w.IntN(6) == 0 {
			return pick(w, kinds)
		}
		return kinds[kind]
	}
	set := func(name string) {
		if name = strings.Trim(path.Clean("/"+name), "/"); name != "" && isValueKey.MatchString(name) && w.IntN(8) > 0 {
			t.Keys[name] = value()
		}
	}
	var names []string
	for _, m := range quotedText.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	for _, m := range printed.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.ReplaceAll(regexp.MustCompile(` +("[^"\n]*"|[^ "]+)`).ReplaceAllStringFunc(m[1], func(s string) string {
			if s = strings.TrimSpace(s); s[0] == '"' {
				return strings.Trim(s, `"`)
			}
			return "%s"
		}), "//", "/"))
	}
	for _, name := range names {
		if !strings.Contains(name, "/") {
			continue
		}
		for _, of := range slices.Concat(inventedNames, []string{"web", "db"}) {
			set(strings.NewReplacer("%s", of, "*", of).Replace(name))
		}
	}
	for _, m := range askedKeys.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[3]
		switch {
		case name == "":
		case slices.Contains([]string{"ls", "tree", "safeLs", "gets", "getvs", "lsdir"}, m[2]):
			for _, of := range inventedNames {
				set(strings.TrimSuffix(name, "*") + "/" + of)
				set(strings.TrimSuffix(name, "*") + "/" + of + "/" + "k1")
			}
		default:
			set(name)
		}
	}
	// A key of etcd or of an environment has no keys below it.
	for key := range t.Keys {
		for other := range t.Keys {
			if strings.HasPrefix(other, key+"/") && (program != "consul-template" || w.IntN(2) == 0) {
				delete(t.Keys, key)
			}
		}
	}
	services := []string{"web", "db", "api-v2"}
	for _, m := range askedNames.FindAllStringSubmatch(text, -1) {
		name, _, _ := strings.Cut(m[1], "|")
		if _, rest, tagged := strings.Cut(name, "."); tagged {
			name = rest
		}
		if !slices.Contains(services, name) {
			services = append(services, name)
		}
	}
	for i, name := range services {
		for n := range 1 + w.IntN(3) {
			m := trialMember{ID: fmt.Sprint("s", 9-n), Node: fmt.Sprint("host", w.IntN(12)), Host: fmt.Sprintf("10.0.%d.%d", i, n+1), Port: 80 + w.IntN(1000), Meta: map[string]string{}}
			for _, word := range names {
				word, _, _ = strings.Cut(word, ".")
				if isPlainWord.MatchString(word) && w.IntN(3) > 0 && !slices.Contains(m.Tags, word) {
					m.Tags = append(m.Tags, word)
				}
			}
			for field := range fields {
				if w.IntN(3) > 0 && !slices.Contains(m.Tags, field) {
					m.Meta[field] = fmt.Sprint("m", w.IntN(3))
				}
			}
			slices.Sort(m.Tags)
			t.Services[name] = append(t.Services[name], m)
		}
	}
	return t
}

// TestFresh renders the templates of a directory by the other program and by what the
// import makes of them, with invented data: PROGRAM.txt, in which a line "### NAME" begins
// each. ZKAGENT_FRESH names the directory. Nothing may be wrong.
func TestFresh(t *testing.T) {
	dir := os.Getenv("ZKAGENT_FRESH")
	if dir == "" {
		t.Skip("ZKAGENT_FRESH is not set")
	}
	for _, program := range []string{"consul-template", "confd", "remco"} {
		data, err := os.ReadFile(filepath.Join(dir, program+".txt"))
		if err != nil {
			continue
		}
		t.Run(program, func(t *testing.T) {
			w := rand.New(rand.NewPCG(3, 4))
			var trials []trial
			var of []string
			for part := range strings.SplitSeq("\n"+string(data), "\n### ") {
				name, text, ok := strings.Cut(part, "\n")
				for range 8 {
					if ok {
						trials, of = append(trials, invented(w, program, text)), append(of, name)
					}
				}
			}
			classes, what := map[string]map[string]int{}, map[string]string{}
			for i, want := range original(t, program, trials) {
				class, why := trials[i].compare(t, program, want)
				if classes[of[i]] == nil {
					classes[of[i]] = map[string]int{}
				}
				if classes[of[i]][class]++; class != "identical" && (what[of[i]] == "" || class == "wrong") {
					what[of[i]] = why
				}
			}
			counts := map[string]int{}
			for name, list := range classes {
				class := "fails there"
				for _, c := range []string{"waits here", "identical", "fails here", "flagged", "wrong"} {
					if list[c] > 0 {
						class = c
					}
				}
				if counts[class]++; class == "wrong" {
					t.Errorf("%s: %s", name, what[name])
				} else if class != "identical" {
					t.Logf("%s: %s: %s", name, class, what[name])
				}
			}
			t.Logf("%d templates: %v", len(classes), counts)
		})
	}
}
