package template

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"

	"github.com/zkagent/zkagent/view"
)

// memoryBudget is what one hostile value of 1 MB may take.
const memoryBudget = 200 << 20

// renderValue renders with the value as web/k.
func renderValue(t *testing.T, source, value string) (error, uint64) { //nolint:revive,staticcheck // the error is what is looked at first.
	t.Helper()
	tmpl, err := Parse(Config{Name: "t", Source: source, Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	v := view.View{}.With(view.TreeOf("web", "/web", map[string]string{"k": value}))
	n := testhelp.Allocated(func() { _, err = tmpl.Render(t.Context(), &v, nil) })
	return err, n
}

// TestRender_HostileValues: one value of 1 MB makes no function take the memory
// of the host.
func TestRender_HostileValues(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct{ source, value string }{
		{`{{ key "web/k" | parseYAML }}`, strings.Repeat("[", mb)},
		{`{{ key "web/k" | parseYAML }}`, strings.Repeat("- ", mb/2)},
		{`{{ key "web/k" | parseYAML }}`, strings.Repeat("? ", mb/2)},
		{`{{ key "web/k" | parseJSON }}`, strings.Repeat("[", mb)},
		{`{{ key "web/k" | mustFromJson | toPrettyJson }}`, strings.Repeat("[", 9000) + strings.Repeat("]", 9000)},
		{`{{ key "web/k" | wrapWith 1 (key "web/k") }}`, strings.Repeat("a", mb)},
		{`{{ key "web/k" | splitList "" }}`, strings.Repeat("a", mb+1)},
		{`{{ key "web/k" | split "a" }}`, strings.Repeat("a", mb+1)},
		{`{{ key "web/k" | sprig_split "" }}`, strings.Repeat("a", mb+1)},
		{strings.Repeat(`{{ $x := repeat 15 (key "web/k") }}`, 60), strings.Repeat("a", mb)},
		{strings.Repeat(`{{ $x := key "web/k" | parseJSON }}`, 60), "[" + strings.Repeat(`"aaaaaaaaaaaaaaaa",`, 50000) + "1]"},
	} {
		err, n := renderValue(t, c.source, c.value)
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%.60s: got %v, want %v", c.source, err, ErrTooLarge)
		}
		if limit := uint64(memoryBudget); n > limit+maxLarge*uint64(min(strings.Count(c.source, "$x"), 1)) {
			t.Errorf("%.60s: %d MB", c.source, n>>20)
		}
	}
}

// TestFunctions_HostileValues: no function of text/template itself makes texts
// without bounds, and none compares the elements of long lists each with each.
func TestFunctions_HostileValues(t *testing.T) {
	grow := `{{ $s := "<" }}{{ range until 60 }}{{ $s = %s $s }}{{ end }}`
	lists := `{{ $j := "[" }}{{ range until 5000 }}{{ $j = printf "%%s%s," $j . }}{{ end }}{{ $a := parseJSON (print $j "0]") }}`
	for text, bad := range map[string]bool{
		fmt.Sprintf(grow, "js"):                                                     true,
		fmt.Sprintf(grow, "html"):                                                   false,
		fmt.Sprintf(grow, "urlquery"):                                               false,
		`{{ html (list 1 2) "<" }}`:                                                 false,
		fmt.Sprintf(lists, "%d") + `{{ len (uniq $a) }}`:                            false,
		fmt.Sprintf(lists, "[%d]") + `{{ len (uniq $a) }}`:                          true,
		fmt.Sprintf(lists, "%d") + `{{ containsAll $a $a }}`:                        true,
		`{{ len (uniq (splitList "," (repeat 200000 "a,"))) }}`:                     false,
		`{{ uniq (list 1 "1" 1 1.5 nil nil (list 1) (list 1) true (dict "a" 1)) }}`: false,
	} {
		_, err := render(t, Config{Source: text, Timeout: 2 * time.Minute}, nil, nil)
		if bad != errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// TestSyntax_HostileTexts: the same for the syntaxes.
func TestSyntax_HostileTexts(t *testing.T) {
	const mb = 1 << 20
	for syntax, texts := range map[string][]string{
		"toml": {strings.Repeat("[", mb), "a=" + strings.Repeat("[", mb), strings.Repeat("a.", mb/2) + "a=1", strings.Repeat("a={", mb/3)},
		"yaml": {strings.Repeat("[", mb), strings.Repeat("- ", mb/2), strings.Repeat("{a: ", mb/4)},
		"json": {strings.Repeat("[", mb), strings.Repeat(`{"a":`, mb/5)},
		"xml":  {strings.Repeat("<a>", mb/3)},
	} {
		for _, text := range texts {
			var err error
			n := testhelp.Allocated(func() { err = checkSyntax(syntax, []byte(text), nil) })
			if err == nil || n > memoryBudget {
				t.Errorf("%s %.10q: %d MB, error %v", syntax, text, n>>20, err)
			}
		}
	}
	// What is wide or long is fine.
	for syntax, text := range map[string]string{
		"toml": "a=[" + strings.Repeat("0.5,", 10000) + "0]\nb=\"" + strings.Repeat("a. ", 900) + "\"",
		"json": "[" + strings.Repeat("1.5,", 10000) + "0]",
		"yaml": strings.Repeat("- a.b.c\n", 10000) + "# " + strings.Repeat("-", 200),
	} {
		if err := checkSyntax(syntax, []byte(text), nil); err != nil {
			t.Errorf("%s: %v", syntax, err)
		}
	}
}

// FuzzSyntax parses hostile texts within a budget of memory.
func FuzzSyntax(f *testing.F) {
	for _, s := range []string{"", "[", "a=[[1]]", "- - - a", "? ? a", "a.b.c=1", "<a><b/></a>", "[a]\nb=1", "&a [*a,*a]"} {
		f.Add(s, 100)
	}
	f.Fuzz(func(t *testing.T, text string, times int) {
		times = min(max(times, 1), 1<<20/max(len(text), 1))
		data := []byte(strings.Repeat(text, max(times, 1)))
		for _, syntax := range Syntaxes() {
			if n := testhelp.Allocated(func() { _ = checkSyntax(syntax, data, nil) }); n > 2*memoryBudget {
				t.Fatalf("%s: %d MB for %d bytes", syntax, n>>20, len(data))
			}
		}
	})
}

// FuzzParsers gives hostile values to the functions that parse and multiply.
func FuzzParsers(f *testing.F) {
	sources := []string{
		`{{ key "web/k" | parseYAML | toYAML | len }}`, `{{ key "web/k" | parseJSON | toJSONPretty | len }}`, `{{ key "web/k" | decodeJSON | toUnescapedJSONPretty | len }}`,
		`{{ key "web/k" | mustFromJson | toPrettyJson | len }}`, `{{ key "web/k" | wrapWith 3 (key "web/k") | len }}`, `{{ key "web/k" | splitList "," | len }}`,
		`{{ regexFindAll "." (key "web/k") -1 | len }}`, `{{ key "web/k" | replaceAll "" (key "web/k") | len }}`, `{{ key "web/k" | indent 100 | len }}`,
	}
	for _, s := range []string{"", "[[1]]", "a,b", "- a: [1]", `{"a":{"b":1}}`, "&a [*a]"} {
		f.Add(s, 100)
	}
	f.Fuzz(func(t *testing.T, text string, times int) {
		value := strings.Repeat(text, min(max(times, 1), 1<<16/max(len(text), 1)))
		for _, source := range sources {
			if err, n := renderValue(t, source, value); n > memoryBudget {
				t.Fatalf("%s: %d MB for %d bytes, error %v", source, n>>20, len(value), err)
			}
		}
	})
}

// checkSyntax parses data as the named syntax; more are further parsers.
func checkSyntax(name string, data []byte, more map[string]func([]byte) error) error {
	check, err := syntaxCheck(name, more)
	if err != nil || check == nil {
		return err
	}
	return check(data)
}
