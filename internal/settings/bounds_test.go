package settings

import (
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"

	"github.com/zkagent/zkagent/template"

	"github.com/zclconf/go-cty/cty"
)

// hostileBudget is the memory that one hostile text of 1 MB may take.
const hostileBudget = 400 << 20

// TestSyntax_HostileHCL: a rendered text cannot overflow the stack of the agent,
// which would end it at each start again.
func TestSyntax_HostileHCL(t *testing.T) {
	const mb = 1 << 20
	for _, text := range []string{
		"a = " + strings.Repeat("(", mb), "a = " + strings.Repeat("!", mb), "a = " + strings.Repeat("-", mb),
		"a = " + strings.Repeat("b ? c : ", mb/8), "a = \"" + strings.Repeat("%{if a}", mb/7), "a = \"" + strings.Repeat("${\"", mb/3),
		"a = " + strings.Repeat("[", mb), strings.Repeat("a {\n", mb/4), strings.Repeat("a=1\n", 2*mb),
	} {
		var err error
		n := testhelp.Allocated(func() { err = checkRendered([]byte(text)) })
		if err == nil || n > hostileBudget {
			t.Errorf("%.20q: %d MB, error %v", text, n>>20, err)
		}
	}
	if err := checkRendered([]byte("a = [for x in b : x ? 1 : -2]\n")); err != nil {
		t.Error(err)
	}
}

func TestJSONDecode_HostileValue(t *testing.T) {
	for text, ok := range map[string]bool{
		strings.Repeat("[", 1<<20):                                  false,
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000):       false,
		"[" + strings.Repeat("0,", 1<<20) + "0]":                    false,
		`{"a": [1, {"b": "c"}]}`:                                    true,
		strings.Repeat(`{"a":`, 90) + "1" + strings.Repeat("}", 90): true,
	} {
		var err error
		n := testhelp.Allocated(func() { _, err = jsonDecodeFunc.Call([]cty.Value{cty.StringVal(text)}) })
		if (err == nil) != ok || n > hostileBudget {
			t.Errorf("%.20q: %d MB, error %v", text, n>>20, err)
		}
	}
}

// TestLoad_Nesting: settings that nest a million times are an error, not a crash.
func TestLoad_Nesting(t *testing.T) {
	for _, text := range []string{"a = " + strings.Repeat("(", 1<<20), strings.Repeat("a {\n", 1<<18)} {
		_, err := LoadBytes("zkagent.hcl", []byte(text), testOptions())
		if err == nil || !strings.Contains(err.Error(), "nested too deeply") {
			t.Errorf("%.20q: got %.200v", text, err)
		}
	}
}

// FuzzHCL parses hostile rendered texts within a budget of memory.
func FuzzHCL(f *testing.F) {
	for _, s := range []string{"a = ", "(", "!", "b ? c : ", "%{if a}", "${\"", "a {\n", "<<A\n", "a[*].b"} {
		f.Add("a = ", s, 1000)
	}
	f.Fuzz(func(t *testing.T, prefix, text string, times int) {
		data := []byte(prefix + strings.Repeat(text, min(max(times, 1), 1<<18/max(len(text), 1))))
		if n := testhelp.Allocated(func() { _ = checkRendered(data) }); n > hostileBudget {
			t.Fatalf("%d MB for %d bytes", n>>20, len(data))
		}
	})
}

// checkRendered checks HCL as package template does: the nesting first.
func checkRendered(data []byte) error {
	if err := template.CheckNesting(string(data)); err != nil {
		return err
	}
	return Syntaxes()["hcl"](data)
}
