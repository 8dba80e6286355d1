package arrows

import (
	"os"
	"strings"
	"testing"
)

// TestModules_HaveARow: docs/architecture.md says of each module that go.mod requires
// directly what it is for, who keeps it and what else there was.
func TestModules_HaveARow(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for line := range strings.Lines(string(mod)) {
		if f := strings.Fields(line); strings.HasPrefix(line, "\t") && len(f) == 2 {
			wanted[f[0]] = true
			if !strings.Contains(string(page), "\n| `"+f[0]+"` | ") {
				t.Errorf("docs/architecture.md has no row for %s", f[0])
			}
		}
	}
	_, table, _ := strings.Cut(string(page), "\n## Dependencies\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | "); ok && !wanted[name] {
			t.Errorf("docs/architecture.md has a row for %s, which go.mod does not require", name)
		}
	}
}
