package template

import (
	"encoding/json"
	"os"
	"testing"
)

// TestCases runs the cases that users of consul-template rely on.
func TestCases(t *testing.T) {
	raw, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Tpl, Want string }
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("there are no cases")
	}
	for _, c := range cases {
		t.Run(c.Tpl, func(t *testing.T) {
			tmpl, err := Parse(Config{Name: "case", Source: c.Tpl, Allow: []string{AllowEnv, AllowFile}, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.Want {
				t.Errorf("got %q, want %q", got, c.Want)
			}
		})
	}
}
