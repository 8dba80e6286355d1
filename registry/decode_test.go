package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

const dubboName = "dubbo%3A%2F%2F10.0.0.5%3A20880%2Forg.apache.demo.DemoService%3Fanyhost%3Dtrue%26application%3Ddemo%26interface%3Dorg.apache.demo.DemoService%26methods%3DsayHello%26pid%3D123%26side%3Dprovider%26timestamp%3D1600000000000"

const kafkaData = `{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1600000000000","endpoints":["PLAINTEXT://h:9092","SSL://h:9093"],"rack":"dc1","listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","SSL":"SSL"},"features":{}}`

const patroniData = `{"conn_url":"postgres://10.0.0.1:5432/postgres","api_url":"http://10.0.0.1:8008/patroni","state":"running","role":"master","version":"3.0.2","tags":{"nofailover":true},"xlog_location":67108960,"timeline":1}`

// Each child is decoded by its own format and found by auto.
func TestDecode_Formats(t *testing.T) {
	tests := []struct {
		name, format, node, data string
		want                     view.Member
	}{
		{
			"nerve", FormatNerve, "i-0a1b_0000000007", `{"host":"10.0.0.5","port":8080,"name":"i-0a1b","weight":2,"labels":{"az":"a"}}`,
			view.Member{ID: "i-0a1b", Node: "i-0a1b", Name: "i-0a1b", Host: "10.0.0.5", Port: 8080, Weight: 2, Status: "up", Labels: map[string]string{"az": "a"}},
		},
		{
			"nerve, port as string", FormatNerve, "a_0000000007", `{"host":"h","port":"8080","name":"a"}`,
			view.Member{ID: "a", Node: "a", Name: "a", Host: "h", Port: 8080, Weight: 1, Status: "up"},
		},
		{
			"go-nerve, not available", FormatNerve, "a_0000000007", `{"host":"h","port":1,"name":"a","weight":7,"available":false,"unavailable_reason":"x"}`,
			view.Member{ID: "a", Node: "a", Name: "a", Host: "h", Port: 1, Status: "down"},
		},
		{
			"nerve in the name", FormatNerve, "base64_40_eyJob3N0IjoiMTAuMC4wLjUiLCJwb3J0Ijo4MH0=_0000000003", "",
			view.Member{ID: "10.0.0.5:80", Name: "10.0.0.5:80", Host: "10.0.0.5", Port: 80, Weight: 1, Status: "up"},
		},
		{
			"serverset", FormatServerSet, "member_0000000000", `{"serviceEndpoint":{"host":"10.0.0.5","port":8080},"additionalEndpoints":{"http-admin":{"host":"10.0.0.5","port":9990}},"status":"ALIVE","shard":0}`,
			view.Member{ID: "member_0000000000", Name: "member_0000000000", Host: "10.0.0.5", Port: 8080, Weight: 1, Status: "up", Ports: map[string]int{"http-admin": 9990}, Labels: map[string]string{"shard": "0"}},
		},
		{
			"curator, as little as is allowed", FormatCurator, "a", `{"name":"web","id":"a","address":"10.0.0.5","port":"90"}`,
			view.Member{ID: "a", Name: "a", Host: "10.0.0.5", Port: 90, Weight: 1, Status: "up"},
		},
		{
			"curator, TLS only", FormatCurator, "a", `{"name":"web","id":"a","address":"h","port":null,"sslPort":443,"payload":"x","serviceType":"DYNAMIC"}`,
			view.Member{ID: "a", Name: "a", Host: "h", Port: 443, Ports: map[string]int{"ssl": 443}, Weight: 1, Status: "up"},
		},
		{
			"spring, out of service", FormatCurator, "a", `{"name":"web","id":"a","address":"h","port":1,"payload":{"metadata":{"instance_status":"OUT_OF_SERVICE","zone":"a"}},"serviceType":"DYNAMIC"}`,
			view.Member{ID: "a", Name: "a", Host: "h", Port: 1, Weight: 1, Status: "draining", Labels: map[string]string{"zone": "a"}},
		},
		{
			"kafka", FormatKafka, "3", kafkaData,
			view.Member{ID: "3", Name: "3", Host: "h", Port: 9092, Weight: 1, Status: "up", Ports: map[string]int{"PLAINTEXT": 9092, "SSL": 9093}, Labels: map[string]string{"rack": "dc1"}},
		},
		{
			"kafka without plain listener", FormatKafka, "3", `{"version":2,"host":null,"port":-1,"jmx_port":9,"endpoints":["SSL://h2:9093"]}`,
			view.Member{ID: "3", Name: "3", Host: "h2", Port: 9093, Weight: 1, Status: "up", Ports: map[string]int{"SSL": 9093, "jmx": 9}},
		},
		{
			"patroni", FormatPatroni, "pg1", patroniData,
			view.Member{ID: "pg1", Name: "pg1", Host: "10.0.0.1", Port: 5432, Weight: 1, Status: "up", Ports: map[string]int{"api": 8008}, Labels: map[string]string{"role": "master", "state": "running", "version": "3.0.2", "nofailover": "true"}},
		},
		{
			"dubbo", FormatDubboURL, dubboName, "10.9.9.9",
			view.Member{ID: "10.0.0.5:20880", Name: "10.0.0.5:20880", Host: "10.0.0.5", Port: 20880, Weight: 1, Status: "up", Labels: map[string]string{
				"protocol": "dubbo", "path": "org.apache.demo.DemoService", "anyhost": "true", "application": "demo", "interface": "org.apache.demo.DemoService", "methods": "sayHello", "pid": "123", "side": "provider", "timestamp": "1600000000000",
			}},
		},
		{
			"solr", FormatHostPortName, "10.0.0.7:8983_solr", "",
			view.Member{ID: "10.0.0.7:8983", Name: "10.0.0.7:8983", Host: "10.0.0.7", Port: 8983, Weight: 1, Status: "up", Labels: map[string]string{"context": "solr"}},
		},
		{
			"hbase", FormatHostPortName, "rs1.example.org,16020,1600000000000", "",
			view.Member{ID: "rs1.example.org:16020", Name: "rs1.example.org:16020", Host: "rs1.example.org", Port: 16020, Weight: 1, Status: "up"},
		},
		{
			"text", FormatText, "a", "[2001:db8::5]:80\n",
			view.Member{ID: "a", Name: "a", Host: "2001:db8::5", Port: 80, Weight: 1, Status: "up"},
		},
		{
			"text, URL", FormatText, "0", "http://10.0.0.5:8080",
			view.Member{ID: "0", Name: "0", Host: "10.0.0.5", Port: 8080, Weight: 1, Status: "up"},
		},
		{
			"json", FormatJSON, "a", `{"ip":"10.0.0.5","port":80,"status":"draining","ports":{"admin":81},"meta":{"v":1}}`,
			view.Member{ID: "a", Name: "a", Host: "10.0.0.5", Port: 80, Weight: 1, Status: "draining", Ports: map[string]int{"admin": 81}, Labels: map[string]string{"v": "1"}},
		},
	}
	for _, tt := range tests {
		for _, format := range []string{tt.format, FormatAuto} {
			t.Run(tt.name+"/"+format, func(t *testing.T) {
				got, err := Decode(format, tt.node, []byte(tt.data))
				if err != nil {
					t.Fatal(err)
				}
				tt.want.Znode = tt.node
				tt.want.Node = cmp.Or(tt.want.Node, tt.want.Host)
				if !got.Equal(tt.want) {
					t.Errorf("got  %+v\nwant %+v", got, tt.want)
				}
			})
		}
	}
}

func TestDecode_Names(t *testing.T) {
	got, err := Decode(`regexp-name:^(?P<id>[a-z]+)@(?P<host>[^:]+):(?P<port>\d+)$`, "web@10.0.0.5:80", []byte("whatever"))
	if err != nil || got.ID != "web" || got.Address() != "10.0.0.5:80" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, format := range []string{"regexp-name:(", "regexp-name:a", "regexp-name:(?P<id>a)", "regexp-name:(?P<name>a)", "nothing"} {
		if _, err := Decode(format, "a", nil); err == nil {
			t.Errorf("format %q was taken", format)
		}
	}
	for _, format := range []string{FormatServerSet, FormatAuto} {
		if _, err := Decode(format, "vector_0000000003", []byte(`{"vector":[{"select":"member=member_0000000003","weight":0.5,"priority":1}]}`)); !errors.Is(err, ErrIgnore) {
			t.Errorf("%s: a vector: %v", format, err)
		}
	}
}

// What was seen to break configuration files, and what could.
func TestDecode_Poison(t *testing.T) {
	injection := `127.0.0.1:1; } server { listen 127.0.0.1:18099; location / { root /etc; } } upstream pwn { server 127.0.0.1`
	record := func(field, value string) string {
		fields := map[string]string{"host": `"10.0.0.5"`, "port": "80", "name": `"a"`}
		fields[field] = value
		var parts []string
		for k, v := range fields {
			parts = append(parts, fmt.Sprintf("%q:%s", k, v))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	bad := map[string]string{
		"injected host":   record("host", `"`+injection+`"`),
		"newline in host": record("host", `"10.0.0.5\n"`), "port 0": record("port", "0"),
		"port 65536": record("port", "65536"), "port -1": record("port", "-1"), "port 1e3": record("port", "1e3"),
		"port 80.5": record("port", "80.5"), "port text": record("port", `"http"`), "port list": record("port", "[80]"),
		"port with plus": record("port", `"+80"`), "weight": record("weight", "257"), "weight -1": record("weight", "-1"),
		"host number": record("host", "5"), "host list": record("host", `["a"]`), "host null": record("host", "null"),
		"available text": record("available", `"no"`),
		"array":          "[]", "null": "null", "two": "{}{}", "cut": `{"host":`, "binary": "\xff\x00\x01", "large": strings.Repeat("x", maxData+1),
	}
	for name, data := range bad {
		for _, format := range []string{FormatNerve, FormatAuto} {
			if m, err := Decode(format, "a_0000000001", []byte(data)); err == nil {
				t.Errorf("%s (%s) was taken: %+v", name, format, m)
			}
		}
	}
	good := []byte(`{"host":"10.0.0.5","port":80,"name":"a"}`)
	for b := range 256 {
		node := "a" + string(rune(b)) + "b"
		allowed := b < 128 && nodePattern.MatchString(string(rune(b)))
		if _, err := Decode(FormatNerve, node, good); (err == nil) != allowed {
			t.Errorf("name with byte %#x: %v", b, err)
		}
	}
	if _, err := Decode(FormatNerve, strings.Repeat("a", maxNode+1), good); err == nil {
		t.Error("a long name was taken")
	}
}

func TestParseHost(t *testing.T) {
	good := map[string]string{
		"10.0.0.5": "10.0.0.5", "::1": "::1", "[2001:DB8::5]": "2001:db8::5", "2001:db8:0:0::5": "2001:db8::5",
		"::ffff:10.0.0.5": "10.0.0.5", "web": "web", "web-1.example.org": "web-1.example.org", "web.": "web", "3com.com": "3com.com", "1a": "1a",
		strings.Repeat("a", 63) + ".b": strings.Repeat("a", 63) + ".b",
	}
	for in, want := range good {
		if got, err := ParseHost(in); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
	bad := []string{
		"", ".", "a..b", "-a", "a-", "a_b", "a b", "a;b", "a/b", "a\nb", "a\x00", "ä", "10.0.0", "10.0.0.256", "1", "0x7f000001", "a.0x1f", "010.0.0.1",
		"0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1%eth0", "[10.0.0.5]", "[::1", "::1]", "1:2", "a:80",
		strings.Repeat("a", 64), strings.Repeat("a.", 127) + "aa",
	}
	for _, in := range bad {
		if got, err := ParseHost(in); err == nil {
			t.Errorf("%q was taken as %q", in, got)
		}
	}
	for b := range 256 {
		c := string([]byte{'a', byte(b), 'b'})
		allowed := strings.IndexByte(hostChars+".", byte(b)) >= 0
		if _, err := ParseHost(c); (err == nil) != allowed {
			t.Errorf("host with byte %#x: %v", b, err)
		}
	}
}

// FuzzDecode: whatever is in ZooKeeper, a member that comes out is valid.
func FuzzDecode(f *testing.F) {
	for _, format := range append(sortedFormats(), `fields:{"address":"name","match":"^(.+)$"}`) {
		f.Add(format, "a_0000000001", []byte(`{"host":"10.0.0.5","port":80,"name":"a","labels":{"az":"a"}}`))
		f.Add(format, "3", []byte(kafkaData))
		f.Add(format, dubboName, []byte(patroniData))
		f.Add(format, "rs1,16020,1", []byte("[::1]:80"))
	}
	f.Fuzz(func(t *testing.T, format, name string, data []byte) {
		m, err := Decode(format, name, data)
		if err != nil {
			return
		}
		if host, err := ParseHost(m.Host); err != nil || host != m.Host {
			t.Errorf("host %q: %v", m.Host, err)
		}
		if m.Port < 0 || m.Port > 65535 || m.Weight < 0 || m.Weight > maxWeight || m.Znode != name {
			t.Errorf("got %+v", m)
		}
		if !view.IsName(m.Name) || !view.IsName(m.ID) || !nodePattern.MatchString(m.Znode) {
			t.Errorf("names: %+v", m)
		}
		for k, v := range m.Labels {
			if !keyPattern.MatchString(k) || !printable(v) || len(v) > maxLabelValue {
				t.Errorf("label %q: %q", k, v)
			}
		}
	})
}

func sortedFormats() []string {
	var list []string
	for f := range maps.Keys(decoders) {
		list = append(list, f)
	}
	return list
}

// FuzzParseHost: what is accepted is its own canonical form.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"10.0.0.5", "::1", "web.example.org.", "0x7f.1", "[::ffff:1.2.3.4]", "a_b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := ParseHost(s)
		if err != nil {
			return
		}
		if again, err := ParseHost(host); err != nil || again != host || strings.ContainsAny(host, " ;{}\"'\n\r\t/\\[]%") {
			t.Errorf("%q became %q, then %q, %v", s, host, again, err)
		}
	})
}

// A label that is text but no token does not cost the member its place, and is
// not among the labels that a template may print bare.
func TestDecode_LabelsThatAreNoTokens(t *testing.T) {
	data := `{"host":"10.0.0.5","port":80,"name":"a","labels":{"zone":"eu-1","build":"a:1/b@c+d","note":"a; } evil {","unit":"é","long":"` + strings.Repeat("x", 256) + `"}}`
	m, err := Decode(FormatNerve, "a_0000000001", []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"zone": "eu-1", "build": "a:1/b@c+d", "long": strings.Repeat("x", 256)}; !maps.Equal(m.Labels, want) {
		t.Errorf("labels %q, want %q", m.Labels, want)
	}
	if want := map[string]string{"note": "a; } evil {", "unit": "é"}; !maps.Equal(m.RawLabels, want) {
		t.Errorf("raw labels %q, want %q", m.RawLabels, want)
	}
	if m, err := Decode(FormatNerve, "a_0000000001", []byte(`{"host":"10.0.0.5","port":80,"name":"a","labels":{"note":"a\u0007"}}`)); err != nil || len(m.Labels)+len(m.RawLabels) > 0 {
		t.Error("a label with a control character was taken")
	}
}

// The memberships of kazoo and Curator are read without a format being named: the host is
// the identifier, which is the data, or for a ShallowParty the end of the name.
func TestDecode_PartiesAndGroupMembers(t *testing.T) {
	const hex = "0123456789abcdef0123456789abcdef"
	for _, c := range []struct{ name, data, host string }{
		{hex + "__party__", "web1", "web1"},
		{hex + "__party__", "10.0.0.1:80", "10.0.0.1"},
		{hex + "-web1", "", "web1"},
		{"web1", "web1", "web1"},
		{"member-7", "10.0.0.7", "10.0.0.7"},
	} {
		m, err := Decode(FormatAuto, c.name, []byte(c.data))
		if err != nil || m.Host != c.host {
			t.Errorf("%s with %q: host %q, %v", c.name, c.data, m.Host, err)
		}
	}
	for name, data := range map[string]string{"flag": "true", hex + "__party__": "", hex + "-": "", "x": "one two"} {
		if m, err := Decode(FormatAuto, name, []byte(data)); err == nil && m.Host != name {
			t.Errorf("%s with %q is %+v", name, data, m)
		}
	}
}

// A label that a member may not have never takes the member away, in any format: it is
// left out, and said.
func TestDecode_LabelsThatMayNotBe(t *testing.T) {
	for format, child := range map[string][2]string{
		FormatNerve:     {"a_0000000001", `{"host":"10.0.0.5","port":80,"name":"a","labels":%s}`},
		FormatServerSet: {"member_0000000001", `{"serviceEndpoint":{"host":"10.0.0.5","port":80},"status":"ALIVE","metadata":%s}`},
		FormatCurator:   {"a", `{"name":"w","id":"a","address":"10.0.0.5","port":80,"payload":{"metadata":%s}}`},
		FormatPatroni:   {"a", `{"conn_url":"postgres://10.0.0.5:80/x","tags":%s}`},
		FormatJSON:      {"a", `{"host":"10.0.0.5","port":80,"labels":%s}`},
		FormatAuto:      {"a", `{"address":"10.0.0.5","port":80,"meta":%s}`},
	} {
		for _, labels := range []string{
			`{"traefik.enable=true":"true","ok":"1"}`, `{"urlprefix-/web":"true","ok":"1"}`, `{"ok":"1","a b":"x"}`,
			`{"ok":"1","a":"\u001b[2J"}`, `{"ok":"1","long":"` + strings.Repeat("x", 257) + `"}`, `{"ok":"1","long":{"a":"` + strings.Repeat("x", 257) + `"}}`,
		} {
			m, err := Decode(format, child[0], fmt.Appendf(nil, child[1], labels))
			if err != nil || m.Labels["ok"] != "1" || len(m.Labels)+len(m.RawLabels) > 2 || m.LabelsLeftOut == "" {
				t.Errorf("%s %.60s: got %+v, %v", format, labels, m, err)
			}
		}
	}
	for _, c := range [][3]string{
		{FormatNerve, "a_0000000001", `{"host":"h","port":80,"name":"a; } server {"}`},
		{FormatJSON, "a", `{"host":"h","port":80,"name":"The web server"}`},
		{FormatJSON, "a", `{"host":"h","port":80,"id":"-rf"}`},
		{FormatCurator, "a", `{"id":"a/b","address":"h","port":80}`},
		{FormatServerSet, "member_0000000001", `{"serviceEndpoint":{"host":"h","port":80},"additionalEndpoints":{"http/admin":{"host":"h","port":81}},"status":"ALIVE"}`},
		{FormatKafka, "1", `{"host":"h","port":9092,"rack":"` + strings.Repeat("r", 257) + `"}`},
		{FormatDubboURL, "dubbo%3A%2F%2F10.0.0.5%3A20880%2Fx%3Fa%2Fb%3D1%26side%3Dprovider", ""},
		{FormatNerve, "a_0000000001", `{"host":"h","port":80,"name":"a","labels":["x"]}`},
	} {
		if m, err := Decode(c[0], c[1], []byte(c[2])); err != nil || m.LabelsLeftOut == "" {
			t.Errorf("%s %s %.60s: got %+v, %v", c[0], c[1], c[2], m, err)
		}
	}
	for name, format := range map[string]string{
		"dubbo%3A%2F%2F%5Bfd00%3A%3A1%5D%3A20880%2Fx%3Fside%3Dprovider": FormatDubboURL,
		"fd00::1,16020,1":                     FormatHostPortName,
		strings.Repeat("a.", 90) + "b:80":     FormatHostPortName,
		strings.Repeat("a.", 90) + "b,80,123": FormatAuto,
	} {
		if m, err := Decode(format, name, nil); err != nil || m.LabelsLeftOut != "" {
			t.Errorf("%s: got %+v, %v", name, m, err)
		}
	}
	var many strings.Builder
	for i := range 70 {
		fmt.Fprintf(&many, `,"l%d":"x"`, i)
	}
	m, err := Decode(FormatNerve, "a_0000000001", fmt.Appendf(nil, `{"host":"h","port":80,"name":"a","labels":{%s}}`, many.String()[1:]))
	if err != nil || len(m.Labels) != 64 || !strings.Contains(string(m.LabelsLeftOut), "and 5 more") {
		t.Errorf("got %+v, %v", m, err)
	}
}
