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

// debianNginx is the unit of nginx that the drop-in is made for.
const debianNginx = `[Unit]
Description=nginx
[Service]
Type=forking
PIDFile=/run/nginx.pid
ExecStartPre=/usr/sbin/nginx -t -q -g 'daemon on; master_process on;'
ExecStart=/usr/sbin/nginx -g 'daemon on; master_process on;'
ExecReload=/usr/sbin/nginx -g 'daemon on; master_process on;' -s reload
`

// TestUnits: systemd understands the units and the drop-in for nginx, and rates
// each sandbox as this test says at most.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("systemd-analyze is missing (apt-get install systemd): %v", err)
	}
	dir := t.TempDir()
	for _, unit := range []struct {
		name, base, file string
		exposure         string // in tenths
	}{
		{"zkagent.service", "", "zkagent.service", "15"},
		{"zkagent-check@.service", "", "zkagent-check@.service", "16"},
		{"nginx.service", debianNginx, "nginx-sandbox.conf", "45"},
	} {
		text, err := os.ReadFile(unit.file)
		if err != nil {
			t.Fatal(err)
		}
		// The programs of the unit need not be on this machine.
		all := regexp.MustCompile(`(?m)^(Exec\w+=\+?)/\S+`).ReplaceAllString(unit.base+string(text), "${1}/bin/true")
		file := filepath.Join(dir, unit.name)
		if err := os.WriteFile(file, []byte(all), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), unit.name) {
			t.Errorf("verify %s: %v\n%s", unit.file, err, out)
		}
		out, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+unit.exposure, file).CombinedOutput()
		if err != nil {
			t.Errorf("%s: exposure above %s tenths: %v\n%s", unit.file, unit.exposure, err, out)
		}
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
