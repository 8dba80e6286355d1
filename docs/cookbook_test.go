package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/registry"
)

// TestCookbook: the settings of the cookbook are valid, and read a znode as each
// program writes it.
func TestCookbook(t *testing.T) {
	text := "zookeeper { servers = [\"127.0.0.1:2181\"] }\n"
	for _, m := range regexp.MustCompile("(?s)```hcl part\n(.*?)```").FindAllStringSubmatch(read(t, "cookbook.md"), -1) {
		text += m[1]
	}
	file := filepath.Join(t.TempDir(), "zkagent.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := settings.Load([]string{file}, settings.Options{Offline: true})
	if err != nil {
		t.Fatalf("%v: %+v", err, s.Diagnostics)
	}
	znodes := map[string][3]string{ // the name, the data, and the address
		"kafka":         {"0", `{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://k1:9092"],"host":"k1","port":9092,"version":4}`, "k1:9092"},
		"orders":        {"dubbo%3A%2F%2F10.0.0.1%3A20880%2Fcom.example.Orders%3Fside%3Dprovider", "", "10.0.0.1:20880"},
		"users":         {"member_0000000001", `{"serviceEndpoint":{"host":"10.0.0.2","port":8080},"additionalEndpoints":{},"status":"ALIVE","shard":0}`, "10.0.0.2:8080"},
		"billing":       {"6b3f", `{"name":"billing","id":"6b3f","address":"10.0.0.3","port":8081,"sslPort":null,"payload":null,"serviceType":"DYNAMIC"}`, "10.0.0.3:8081"},
		"solr":          {"10.0.0.4:8983_solr", "", "10.0.0.4:8983"},
		"regionservers": {"rs1.example.org,16020,1700000000000", "\xffPBUF", "rs1.example.org:16020"},
		"pinot":         {"Server_10.0.0.5_8098", `{"id":"Server_10.0.0.5_8098","simpleFields":{"LIVE_INSTANCE":"1@h"}}`, "10.0.0.5:8098"},
		"druid":         {"h1:8083", `{"name":"h1:8083","host":"h1:8083","hostAndTlsPort":null,"type":"historical","tier":"_default_tier","priority":0}`, "h1:8083"},
		"ours":          {"a", `{"node":{"host":"10.0.0.6","port":80},"weight":2,"state":"ACTIVE","meta":{"zone":"a"}}`, "10.0.0.6:80"},
	}
	if len(s.Config.Groups) != len(znodes) {
		t.Errorf("the page has %d groups, %d are tried", len(s.Config.Groups), len(znodes))
	}
	for _, g := range s.Config.Groups {
		z := znodes[g.Name]
		m, err := registry.Decode(g.Format, z[0], []byte(z[1]))
		if got := fmt.Sprintf("%s:%d", m.Host, m.Port); err != nil || got != z[2] {
			t.Errorf("%s: got %s, %v, want %s", g.Name, got, err, z[2])
		}
		if _, err := registry.Decode(g.Format, "x", []byte("$(reboot)\x1b[2J"+strings.Repeat("{", 50))); err == nil {
			t.Errorf("%s takes what is no member", g.Name)
		}
	}
}
