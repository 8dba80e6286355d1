package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// The names of the groups of a set are anybody's text: a child whose name is no name is
// no group.
func TestGroups_NamesThatAreNoNames(t *testing.T) {
	hostile := []string{"x { server 6.6.6.6; } server { root ;} upstream y", "$(id)", "-rf", "`id`", "a\"b", "a\u202eb", "~x"}
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		t.Cleanup(srv.Close)
		for _, name := range append([]string{"good"}, hostile...) {
			if err := srv.Create("/sets/"+name+"/m1", record(1)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := session.Dial(t.Context(), session.Config{Servers: []string{"a:2181"}, Timeout: 12 * time.Second, Dial: srv.Dial})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		g := NewGroups(GroupConfig{Name: "all", Path: "/sets"})
		got, done := make(chan *view.Groups, 100), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- g.Run(ctx, s, func(v *view.Groups) { got <- v }) }()
		set := <-got
		slices.Sort(hostile)
		if len(set.Groups) != 1 || set.Groups[0].Name != "good" || !slices.Equal(set.RawNames, hostile) {
			t.Errorf("got %d groups, raw names %q", len(set.Groups), set.RawNames)
		}
		for _, name := range hostile {
			if err := srv.Delete("/sets/" + name + "/m1"); err != nil {
				t.Fatal(err)
			}
			if err := srv.Delete("/sets/" + name); err != nil {
				t.Fatal(err)
			}
		}
		for len(set.RawNames) > 0 {
			set = <-got
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// hostileTexts mean something in a file of nginx, HAProxy, a shell, JSON or HTML, in a path,
// or on a terminal.
var hostileTexts = []string{
	"x;\n}\nserver { root /; }", "\x1b[2J", "-rf", "`id`", "$(id)", "a\u202eb", `a"b`, `a'b`, "a b", "a#b", `a\b`, "%[env(X)]", "{{ . }}", "<script>", "a|b", "a&b",
	"..", "../../etc/passwd", "a\x00b", "a\rb", "a\u2028b", "\xff\xfe", "~x", "*", "", strings.Repeat("a", 300), strings.Repeat("9", 40), "-1", "1e3",
}

// formatSamples are one full record in each format.
var formatSamples = []struct{ format, node, data string }{
	{FormatNerve, "a_0000000007", `{"host":"h","port":1,"name":"a","weight":7,"haproxy_server_options":"check","labels":{"az":"a"},"available":false,"unavailable_reason":"draining"}`},
	{FormatServerSet, "member_0000000000", `{"serviceEndpoint":{"host":"h","port":8080},"additionalEndpoints":{"admin":{"host":"h","port":9990}},"status":"ALIVE","shard":0}`},
	{FormatCurator, "a", `{"name":"web","id":"a","address":"h","port":90,"sslPort":443,"payload":{"id":"x","name":"y","metadata":{"instance_status":"UP","zone":"a"}},"registrationTimeUTC":1,"serviceType":"DYNAMIC","uriSpec":{"parts":[{"value":"http","variable":true}]}}`},
	{FormatKafka, "3", kafkaData},
	{FormatPatroni, "pg1", patroniData},
	{FormatDubboURL, dubboName + "%26weight%3D5%26disabled%3Dfalse", "10.9.9.9"},
	{FormatHostPortName, "10.0.0.7:8983_solr", ""},
	{FormatHostPortName, "rs1.example.org,16020,1600000000000", ""},
	{FormatJSON, "a", `{"ip":"h","port":80,"id":"i","name":"n","weight":2,"status":"draining","ports":{"admin":81},"meta":{"v":1}}`},
	{FormatJSON, "a", `{"url":"http://h:80/x","labels":{"a":"b"}}`},
	{FormatText, "a", "http://h:8080/x"},
	{`fields:{"address":"name","match":"^(?P<id>[^@]*)@([^:]*):(.*)$"}`, "web@10.0.0.5:80", ""},
	{`fields:{"address":"$.at.host","port":"$.at.port","weight":"$.w","status":"$.s","id":"$.id","labels":{"l":"$.l","n":"name","d":"data"}}`, "a", `{"at":{"host":"h","port":80},"w":2,"s":"up","id":"i","l":"x"}`},
	{`fields:{"only":"Lock$","address":"#3","port":"#4","id":"#2","labels":{"service":"#1"}}`, "ActiveStandbyElectorLock", activeNode},
	{`fields:{"address":"data","match":"^([^ ]*)$","id":"name"}`, "a", "h:80"},
}

// In every format, hostile text in any field, key or part of a name makes the record
// rejected, is left out, or is where only rawLabel prints it. A quick run puts each text
// into a fourth of the places, into others every day.
func TestDecode_HostileFields(t *testing.T) {
	testhelp.InTurn(t, 2)
	first, stride := testhelp.Steps()
	for _, s := range formatSamples {
		if _, err := Decode(s.format, s.node, []byte(s.data)); err != nil {
			t.Fatalf("%s: the sample: %v", s.format, err)
		}
		taken, all := 0, 0
		for i, text := range hostileTexts {
			for j, r := range hostileRecords(s.node, s.data, text) {
				if (i+j)%stride != first-1 {
					continue
				}
				for _, format := range []string{s.format, FormatAuto} {
					m, err := Decode(format, r[0], []byte(r[1]))
					all++
					if err != nil {
						continue
					}
					taken++
					if problem := unsafe(&m); problem != "" {
						t.Errorf("%s: name %q, data %q: %s in %+v", format, r[0], r[1], problem, m)
					}
				}
			}
		}
		t.Logf("%s: %d of %d records were taken", s.format, taken, all)
	}
}

// hostileRecords are names and data with the text in the place of each value, each key, and
// each part of a name or of plain data.
func hostileRecords(node, data, text string) [][2]string {
	var list [][2]string
	for _, n := range hostileParts(node, text) {
		list = append(list, [2]string{n, data})
	}
	var v any
	if json.Unmarshal([]byte(data), &v) != nil {
		for _, d := range hostileParts(data, text) {
			list = append(list, [2]string{node, d})
		}
		return list
	}
	for _, changed := range hostileValues(v, text) {
		d, err := json.Marshal(changed)
		if err != nil {
			continue
		}
		list = append(list, [2]string{node, string(d)})
		if strings.HasPrefix(data, `{"host"`) { // Nerve's record may stand in the name.
			encoded := base64.URLEncoding.EncodeToString(d)
			list = append(list, [2]string{fmt.Sprintf("base64_%d_%s_0000000003", len(encoded), encoded), ""})
		}
	}
	return list
}

// hostileParts puts the text into the place of each word of s, as it is and as a URL has
// it.
func hostileParts(s, text string) []string {
	list := []string{text, s + text, text + s}
	words := strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("_:,@/%-.", r) })
	for _, w := range words {
		for _, t := range []string{text, url.QueryEscape(text), url.QueryEscape(url.QueryEscape(text))} {
			list = append(list, strings.Replace(s, w, t, 1), strings.Replace(s, w, w+t, 1))
		}
	}
	return list
}

// hostileValues are copies of a JSON value, each with the text in another place: instead
// of a value, behind it, in a list, as a number of great size, or as a key.
func hostileValues(v any, text string) []any {
	list := []any{text, []any{text}, map[string]any{text: text}, json.Number("1e300"), -1, true, nil}
	switch v := v.(type) {
	case string:
		list = append(list, v+text, text+v)
		if head, tail, ok := strings.Cut(v, "://"); ok {
			list = append(list, text+"://"+tail, head+"://"+text+":80/", head+"://"+text+"@"+tail, head+"://h:"+text)
		}
	case []any:
		for i, one := range v {
			for _, changed := range hostileValues(one, text) {
				c := slices.Clone(v)
				c[i] = changed
				list = append(list, c)
			}
		}
	case map[string]any:
		for key, one := range v {
			for _, changed := range hostileValues(one, text) {
				c := maps.Clone(v)
				c[key] = changed
				list = append(list, c)
			}
			c := maps.Clone(v)
			c[text] = one
			list = append(list, c)
		}
	}
	return list
}

// unsafe says which of the member's fields that a template prints could mean something else
// in a file; empty: none.
func unsafe(m *view.Member) string {
	fields := reflect.ValueOf(*m)
	for i := range fields.NumField() {
		name, f := fields.Type().Field(i).Name, fields.Field(i)
		switch value := f.Interface().(type) {
		case string:
			if !plain(value) {
				return name
			}
		case map[string]string: // Labels
			for k, v := range value {
				if !plain(k) || !plain(v) || len(value) > maxLabels || len(v) > maxLabelValue {
					return name
				}
			}
		case view.RawLabels:
			for k, v := range value {
				if !plain(k) || !printable(v) || len(value) > maxLabels || len(v) > maxLabelValue {
					return name
				}
			}
		case map[string]int:
			for k, v := range value {
				if !plain(k) || v < 1 || v > 65535 || len(value) > maxPorts {
					return name
				}
			}
		}
	}
	host, err := ParseHost(m.Host)
	switch {
	case err != nil || host != m.Host:
		return "Host"
	case !view.IsName(m.ID) || !view.IsName(m.Node) || !view.IsName(m.Name):
		return "a name"
	case !slices.Contains(view.StatusWords[:4], m.Status):
		return "Status"
	case m.Port < 0 || m.Port > 65535 || m.Weight < 0 || m.Weight > maxWeight:
		return "a number"
	case !plain(m.Address()) || fmt.Sprint(m.LabelsLeftOut) != "":
		return "Address or LabelsLeftOut"
	}
	return ""
}

// plain reports whether the text has only characters that docs/security.md has for any of
// the fields.
func plain(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:%+=,~*@-/[]") == ""
}
