package template

import (
	"encoding/json"
	"os"
	"testing"
)

// TestCases runs the cases that users of consul-template rely on: common ones,
// and edges (nothing, negative numbers, wrong types, other scripts) of every
// function, with what consul-template gives for them.
func TestCases(t *testing.T) {
	for _, file := range []string{"testdata/cases.json", "testdata/edges.json"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct {
			Tpl, Want string
			Fails     bool
		}
		if err := json.Unmarshal(raw, &cases); err != nil {
			t.Fatal(err)
		}
		if len(cases) == 0 {
			t.Fatalf("there are no cases in %s", file)
		}
		for _, c := range cases {
			t.Run(c.Tpl, func(t *testing.T) {
				got, err := runCase(t, c.Tpl)
				if (err != nil) != c.Fails || got != c.Want {
					t.Errorf("got %q, %v, want %q, an error: %t", got, err, c.Want, c.Fails)
				}
			})
		}
	}
}

// runCase parses and renders a text without a view.
func runCase(t *testing.T, text string) (string, error) {
	t.Helper()
	tmpl, err := Parse(Config{
		MissingKeyOK: true, Name: "case", Source: text, Allow: []string{AllowEnv, AllowFile}, Dir: t.TempDir(),
		LookupEnv: func(name string) (string, bool) {
			return map[string]string{"ZONE": "west"}[name], name == "ZONE" || name == "EMPTY"
		},
	})
	if err != nil {
		return "", err
	}
	got, err := tmpl.Render(t.Context(), nil, nil)
	return string(got), err
}
