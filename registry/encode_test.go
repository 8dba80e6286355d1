package registry

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zkagent/zkagent/view"
)

// The golden files are what the programs that own the formats write.
func TestEncode_Golden(t *testing.T) {
	at := time.UnixMilli(1795191363097)
	web := Registration{Service: "web", ID: "i-0a1b", Host: "10.0.0.5", Port: 8080, Registered: at}
	with := func(change func(*Registration)) Registration {
		r := web
		change(&r)
		return r
	}
	tests := []struct {
		golden, format string
		r              Registration
	}{
		{"nerve", FormatNerve, with(func(r *Registration) { r.Weight, r.Labels = new(2), map[string]string{"az": "a"} })},
		{"serverset", FormatServerSet, with(func(r *Registration) { r.Shard, r.Ports = new(0), map[string]int{"http-admin": 9990} })},
		{"curator", FormatCurator, with(func(r *Registration) {
			r.ID, r.Labels = "11111111-2222-3333-4444-555555555555", map[string]string{"instance_status": "UP"}
			r.Curator = CuratorOptions{PayloadClass: "CuratorDemo$Meta", PayloadID: "application-1", URISpec: springURI}
		})},
		{"curator-plain", FormatCurator, Registration{
			Service: "seq", ID: "s-", Host: "10.0.0.6", Port: 81, Curator: CuratorOptions{SSLPort: 443}, Registered: time.UnixMilli(1795191363182),
		}},
		{"spring", FormatCurator, with(func(r *Registration) {
			r.ID, r.Curator = "6a1c", CuratorOptions{Preset: PresetSpring, PayloadID: "web-1"}
		})},
		{"dubbo3", FormatCurator, with(func(r *Registration) {
			r.Service, r.ID, r.Port, r.Curator = "demo", "10.0.0.5:20880", 20880, CuratorOptions{Preset: PresetDubbo3}
			r.Labels = map[string]string{"dubbo.metadata.storage-type": "local"}
		})},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			got, err := Encode(tt.format, tt.r)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join("testdata", "golden", tt.golden+".json"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			for _, format := range []string{tt.format, FormatAuto} {
				m, err := Decode(format, "x_0000000001", got)
				if err != nil || m.Host != tt.r.Host || m.Port != tt.r.Port || m.Status != view.StatusUp {
					t.Errorf("decode as %s: %+v, %v", format, m, err)
				}
			}
		})
	}
}

// Every status that a format can say comes back as it was.
func TestEncode_StatusRoundTrip(t *testing.T) {
	for _, format := range []string{FormatNerve, FormatServerSet} {
		for _, status := range []string{view.StatusUp, view.StatusDown, view.StatusDraining, view.StatusMaintenance} {
			data, err := Encode(format, Registration{Service: "web", ID: "a", Host: "10.0.0.5", Port: 80, Status: status})
			if err != nil {
				t.Fatal(err)
			}
			m, err := Decode(format, "member_0000000001", data)
			if err != nil || m.Status != status {
				t.Errorf("%s: %s came back as %q, %v", format, status, m.Status, err)
			}
		}
	}
	for preset, want := range map[string]string{"": view.StatusDown, PresetSpring: view.StatusDown} {
		data, err := Encode(FormatCurator, Registration{
			Service: "web", ID: "a", Host: "10.0.0.5", Port: 80, Status: view.StatusDraining, Curator: CuratorOptions{Preset: preset},
		})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := Decode(FormatCurator, "a", data); err != nil || m.Status != want {
			t.Errorf("curator %q: got %q, %v, want %q", preset, m.Status, err, want)
		}
	}
}

func TestEncode_Template(t *testing.T) {
	r := Registration{
		Service: "web", ID: "a", Host: "10.0.0.5", Port: 80, Labels: map[string]string{"az": "a"},
		Template: `{{.Address}} {{.Status}} {{index .Labels "az" | upper}} {{toJSON .Labels}}`,
	}
	got, err := Encode(FormatTemplate, r)
	if want := `10.0.0.5:80 up A {"az":"a"}`; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"", "{{", "{{.Nothing}}"} {
		r.Template = bad
		if _, err := Encode(FormatTemplate, r); err == nil {
			t.Errorf("template %q was taken", bad)
		}
	}
}

func TestParseURISpec_Unknown(t *testing.T) {
	for _, s := range []string{"{host}", "{scheme", "{}"} {
		if _, err := parseURISpec(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}
