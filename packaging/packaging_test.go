// Package packaging_test checks what the packages are made of. That they work
// in a real systemd is shown by "make test-systemd".
package packaging_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/settings"
)

// TestUnits: systemd understands the units, and rates the sandbox of the agent
// at 2.0 at most.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("systemd-analyze is missing (apt-get install systemd): %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"zkagent.service", "zkagent-check@.service"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// The programs of the unit need not be on this machine.
		unit := regexp.MustCompile(`(?m)^(Exec\w+=)\S+`).ReplaceAllString(string(text), "${1}/bin/true")
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(unit), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), name) {
			t.Errorf("verify %s: %v\n%s", name, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20",
		filepath.Join(dir, "zkagent.service")).CombinedOutput()
	if err != nil {
		t.Errorf("exposure above 2.0: %v\n%s", err, out)
	}
}

// TestSettings: the settings of the package are valid as they are.
func TestSettings(t *testing.T) {
	s, err := settings.Load([]string{"zkagent.hcl"}, settings.Options{})
	if err != nil {
		t.Fatalf("zkagent.hcl: %v", err)
	}
	for _, d := range s.Diagnostics {
		t.Errorf("zkagent.hcl: %s", settings.Line(d))
	}
}

// TestContents: what the packages take from the source tree is there.
func TestContents(t *testing.T) {
	text, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sources := regexp.MustCompile(`src: ([^,]+),|install: (\S+)|remove: (\S+)`).FindAllStringSubmatch(string(text), -1)
	if len(sources) < 10 {
		t.Fatalf("got %d files", len(sources))
	}
	for _, m := range sources {
		file := m[1] + m[2] + m[3]
		if strings.HasPrefix(file, "dist/") {
			continue // made by scripts/package
		}
		if _, err := os.Stat(filepath.Join("..", file)); err != nil {
			t.Errorf("nfpm.yaml: %v", err)
		}
	}
}

// TestSBOM: the SBOM of a binary, here of this test, is JSON that names the
// standard library.
func TestSBOM(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "../scripts/sbom", os.Args[0], "1.2.3", "2020-01-01T00:00:00Z").Output()
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(out, &bom); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Version != "1.2.3" {
		t.Errorf("got %+v", bom)
	}
	for _, c := range bom.Components {
		if c.Name == "std" && strings.HasPrefix(c.PURL, "pkg:golang/std@1.") {
			return
		}
	}
	t.Errorf("the standard library is not among %d components", len(bom.Components))
}
