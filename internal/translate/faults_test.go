package translate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// places are configs at several paths, of which some have the same base.
const places = `
[template]
src = "%s"
dest = "/etc/%s.conf"
prefix = "%s"
keys = ["/"]
`

// Two prefixes with the same last element are two configs, in any order, and keys below
// an element of that name are a third.
func TestConfd_PrefixesWithTheSameName(t *testing.T) {
	var r *Result
	read := func(string) ([]byte, error) {
		return []byte(`{{ getv "/name" }}{{ range gets "/h/*" }} {{ .Key }}={{ .Value }}{{ end }}`), nil
	}
	for i, prefix := range []string{"/prod/app", "/staging/app", "/env/prod/app/", "/a/../staging/app"} {
		var err error
		if r, err = Confd(r, "t.toml", fmt.Appendf(nil, places, "t.tmpl", fmt.Sprint("f", i), prefix), read); err != nil {
			t.Fatal(err)
		}
	}
	paths := map[string]bool{}
	for _, path := range r.configs {
		paths[path] = true
	}
	if len(paths) != len(r.configs) || len(paths) != 3 || r.Lost() > 0 {
		t.Fatalf("configs %v: %q", r.configs, r.Notes())
	}
	for i, path := range []string{"/prod/app", "/staging/app", "/env/prod/app", "/staging/app"} {
		name, _ := r.config(path)
		for _, want := range []string{`key "` + name + `/name"`, `trimPrefix "` + name + `" .Path`} {
			if !strings.Contains(r.Templates[i].Text, want) {
				t.Errorf("%s is config %s: got %s", path, name, r.Templates[i].Text)
			}
		}
	}
}

// The prefix and the keys of remco's backends count, whatever store they are of, and those
// of default_backends for a resource that names none.
func TestRemco_Backends(t *testing.T) {
	read := func(string) ([]byte, error) { return []byte(`{{ getv("/app/name") }}`), nil }
	resource := func(name, backend string) string {
		return fmt.Sprintf("[[resource]]\nname = %q\n[[resource.template]]\nsrc = \"t\"\ndst = \"/%s\"\n%s\n", name, name, backend)
	}
	text := "retries = 0\n[default_backends.env]\nkeys = [\"/app\"]\n" +
		resource("a", "[resource.backend.etcd]\nprefix = \"/prod/app\"") + resource("b", "[resource.backend.etcd]\nprefix = \"/staging/app\"") + resource("c", "")
	r, err := Remco(nil, "r.toml", []byte(text), read)
	if err != nil || r.Lost() > 0 || len(r.Templates) != 3 {
		t.Fatalf("%v, %q", err, r.Notes())
	}
	for i, path := range []string{"/prod/app", "/staging/app", "/app"} {
		name, _ := r.config(path)
		if !strings.Contains(r.Templates[i].Text, `"`+name+"/") {
			t.Errorf("%s is config %s: got %s", path, name, r.Templates[i].Text)
		}
	}
	for _, wrong := range []string{"[resource.backend.etcd]\nprefix = \"/a\"\n[resource.backend.env]", "[resource.backend.etcd]\nkeys = [\"/other\"]"} {
		if r, err := Remco(nil, "r.toml", []byte(resource("a", wrong)), read); err != nil || r.Lost() == 0 {
			t.Errorf("%s: %v, not refused", wrong, err)
		}
	}
}

// Two ensembles never become one list of servers.
func TestTwoEnsembles(t *testing.T) {
	r, err := Nerve(nil, "n.json", []byte(`{"instance_id":"i","services":{"a":{"host":"h","port":1,"zk_hosts":["z1:2181","z2:2181"]},"b":{"host":"h","port":2,"zk_hosts":["z2:2181","z1:2181"]}}}`))
	if err != nil || r.Lost() > 0 || len(r.servers) != 2 {
		t.Errorf("one ensemble: %v, %q, %q", err, r.servers, r.Notes())
	}
	r, err = Synapse(nil, "s.json", []byte(`{"services":{"a":{"discovery":{"method":"zookeeper","path":"/a","hosts":["z1:2181"]}},"b":{"discovery":{"method":"zookeeper","path":"/b","hosts":["y1:2181"]}}},"haproxy":{}}`))
	if err != nil || r.Lost() != 1 || len(r.servers) != 1 || !strings.Contains(strings.Join(r.Notes(), "\n"), "service b uses another ensemble") {
		t.Errorf("two ensembles: %v, %q, %q", err, r.servers, r.Notes())
	}
	text := ""
	for _, host := range []string{"z1", "y1"} {
		text += fmt.Sprintf("[[resource]]\nname = %q\n[resource.backend.zookeeper]\nnodes = [\"%s:2181\"]\n", host, host)
	}
	if r, err = Remco(nil, "r.toml", []byte(text), nil); err != nil || r.Lost() != 1 {
		t.Errorf("remco: %v, %q", err, r.Notes())
	}
}

// What members are is followed through every call, or refused with its place.
func TestShapes(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{{ range or (service "a") (service "b") }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ $a := service "a" }}{{ $b := $a }}{{ range $b }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ range ternary (service "a") (service "b") true }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ block "x" (index (service "a") 0) }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ with $x := first (service "a") }}{{ $x.Address }}{{ end }}`, "{{ $x.Host }}"},
		{`{{ scratch.Set "m" (service "a") }}{{ range scratch.Get "m" }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ range scratch.MapValues "m" }}{{ .Address }}{{ end }}{{ range service "a" }}{{ scratch.MapSet "m" .ID . }}{{ end }}`, "{{ .Host }}"},
		{"\n  {{ scratch.Set \"m\" (service \"a\") }}{{ scratch.Set \"m\" (ls \"a/b\") }}", "line 2, column 3"},
		{`{{ range service "a" }}{{ scratch.MapSet .ID "m" . }}{{ end }}`, "members of services"},
		{`{{ $m := service "a" | byTag }}{{ range $m.blue }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ range (service "a" | byTag).blue }}{{ .Address }}{{ end }}`, "{{ .Host }}"},
		{`{{ define "m" }}{{ $.Address }}{{ end }}{{ range service "a" }}{{ template "m" . }}{{ end }}`, "{{ $.Host }}"},
		{`{{ define "m" }}{{ range . }}{{ .Address }}{{ end }}{{ end }}{{ template "m" service "a" }}`, "{{ .Host }}"},
		{`{{ block "m" service "a" | reverse }}{{ range . }}{{ .Address }}{{ end }}{{ end }}`, "{{ .Host }}"},
		{`{{ with service "a" }}{{ with index . 0 }}{{ $.Address }}{{ end }}{{ end }}`, "{{ $.Address }}"},
		{`{{ range services | byTag }}{{ range . }}{{ range service .Name }}{{ .Name }}{{ end }}{{ end }}{{ end }}`, "{{ $service_1 }}"},
		{`{{ range services }}{{ $n := .Name }}{{ range service $n }}{{ $n = "x" }}{{ .Name }}{{ end }}{{ end }}`, "{{ $service_1 }}"},
		{`{{ range $m := list (index (service "a") 0) }}{{ $m.Address }}{{ end }}`, "line 1, column 1"},
		{`{{ $d := dict "m" (service "a") }}{{ range $d.m }}{{ .Address }}{{ end }}`, "members of services"},
		{`{{ range concat (service "a") (service "b") }}{{ .Address }}{{ end }}`, "members of services"},
		{`{{ range or (service "a") (ls "a/b") }}{{ .Address }}{{ end }}`, "or of pairs of keys and members of services"},
		{`{{ $x := index (service "a") 0 }}{{ $x = "b" }}{{ $x }}`, "use two names"},
		{`{{ range service "a" }}{{ .ID }} {{ .Node }}{{ end }}`, ".ID and .Node in one template"},
	} {
		r, tmpl := newResult("x"), &Template{Name: "t"}
		r.translateText(tmpl, c.in, ctDialect)
		r.Templates = append(r.Templates, tmpl)
		if got := tmpl.Text + strings.Join(r.Notes(), "\n"); !strings.Contains(got, c.want) || strings.HasPrefix(c.want, "{{") != (tmpl.lost == 0) {
			t.Errorf("%s\n got %s\nwant %s", c.in, got, c.want)
		}
	}
	for _, in := range []string{
		`{{ define "x" }}{{ .Key }}{{ end }}{{ range gets "/a/*" }}{{ template "x" (dict "p" .) }}{{ end }}`,
		`{{ $p := gets "/a/*" }}{{ range reverse $p }}{{ .Key }}{{ end }}`, `{{ $m := map "p" (gets "/a/*") }}{{ $m.p }}`,
	} {
		r, tmpl := newResult("x"), &Template{Name: "t"}
		if confdText(r, tmpl, in, confdDialect("", nil), nil); tmpl.lost == 0 {
			t.Errorf("%s\n got %s", in, tmpl.Text)
		}
	}
}

// confd and remco read only below the keys of a resource.
func TestKeysOutside(t *testing.T) {
	for in, lost := range map[string]bool{
		`{{ getv "/app/x" }}`: false, `{{ getv "/apps/x" }}`: true, `{{ range gets "/app/*" }}{{ .Value }}{{ end }}`: false,
		`{{ exists "/b/x" }}`: true, `{{ ls "/" }}`: true, `{{ getv (printf "/app/%s" "x") }}`: false, `{{ getv (printf "/b/%s" "x") }}`: true,
		`{{ getv (print "/app/" "x") }}`: false, `{{ getv (print "/apps/" "x") }}`: true,
		`{{ getv "/app" }}`: false, `{{ getv "/apps" }}`: true, `{{ range gets "/*" }}{{ end }}`: true,
	} {
		tmpl := &Template{Name: "t"}
		if confdText(newResult("x"), tmpl, in, confdDialect("", []string{"/app"}), nil); (tmpl.lost > 0) != lost {
			t.Errorf("%s: lost %d: %s", in, tmpl.lost, tmpl.Text)
		}
	}
}

// Settings that change what a run does are never dropped.
func TestSettingsThatAreNotDropped(t *testing.T) {
	none := func(string) ([]byte, error) { return nil, errors.New("gone") }
	for text, want := range map[string]string{"noop = true": "writes no file", "noop = false": "", "onetime = true": "one pass"} {
		r, err := Confd(nil, "confd.toml", []byte("backend = \"zookeeper\"\n"+text), none)
		if err != nil || (r.Lost() > 0) != (want != "") || !strings.Contains(strings.Join(r.Notes(), "\n"), want) {
			t.Errorf("%s: %v %q", text, err, r.Notes())
		}
	}
	r, err := ConsulTemplate(nil, "a.hcl", []byte("once = true\nwait { min = \"2s\" }\ntemplate {\n contents = \"x\"\n destination = \"/a\"\n}"), none)
	if err != nil || r.Lost() != 1 || !strings.Contains(r.Settings(true), "max = \"8s\"") {
		t.Errorf("consul-template: %v %q %s", err, r.Notes(), r.Settings(true))
	}
	r, err = Remco(nil, "a.toml", []byte("[[resource]]\nname = \"a\"\nreload_cmd = \"x {{.dst}}\"\n[resource.exec]\ncommand = \"app\"\n"), none)
	if err != nil || r.Lost() != 1 || !strings.Contains(r.Settings(true), "kill_timeout = \"10s\"") {
		t.Errorf("remco: %v %q", err, r.Notes())
	}
}

// Two calls of env need one allow, however often the settings are printed.
func TestSettings_AllowTwice(t *testing.T) {
	r, tmpl := newResult("x"), &Template{Name: "t", Destination: "/t"}
	r.translateText(tmpl, `{{ env "A" }}{{ env "B" }}`, ctDialect)
	r.Templates = append(r.Templates, tmpl)
	first := r.Settings(true)
	if second := r.Settings(true); first != second || !strings.Contains(first, `allow = ["env"]`) {
		t.Errorf("got %s, then %s", first, second)
	}
}

// Synapse: the order of the file, each line of listen where it may be, the cookies.
func TestSynapse_LosesNothing(t *testing.T) {
	r, err := Synapse(nil, "s.json", []byte(`{"services":{
	 "zeta":{"discovery":{"method":"zookeeper","path":"/z"},"haproxy":{"port":1,"listen":["mode http","maxconn 5","option httpchk /h","nonsense"],"frontend":["http-request deny if bad"],"backend":["balance source"]}},
	 "alpha":{"discovery":{"method":"zookeeper","path":"/a"},"haproxy":{"port":2,"bind_address":"::1","listen":["mode tcp"]}}},
	 "haproxy":{"bind_address":"0.0.0.0","extra_sections":{"listen z":["x"],"listen b":["y"]}}}`))
	if err != nil || r.Lost() > 0 {
		t.Fatal(err, r.Notes())
	}
	text := r.Templates[0].Text
	at := 0
	for _, want := range []string{
		"listen z", "listen b", "frontend zeta\n\thttp-request deny if bad\n\tmode http\n\tmaxconn 5\n\tbind 0.0.0.0:1\n\tdefault_backend zeta\n",
		"backend zeta\n\tbalance source\n\tmode http\n\toption httpchk /h\n", " cookie {{", "frontend alpha\n\tmode tcp\n\tbind ::1:2\n", "backend alpha\n\tmode tcp\n",
	} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("%q is not there, or not there in order:\n%s", want, text)
		}
		at += i
	}
	if strings.Contains(text[at:], " cookie ") || strings.Contains(text, "nonsense") {
		t.Errorf("got %s", text)
	}
}

// Nerve does not verify certificates.
func TestNerve_CheckWithTLS(t *testing.T) {
	r, err := Nerve(nil, "n.json", []byte(`{"services":{"a":{"host":"h","port":1,"checks":[{"type":"http","uri":"/h","ssl":true}]}}}`))
	if err != nil || !strings.Contains(r.Settings(true), "insecure = true") {
		t.Errorf("%v: %s", err, r.Settings(true))
	}
}

// What pongo2 does with blanks and with numbers of documents, measured with pongo2 v6
// with TrimBlocks and LStripBlocks.
func TestRemco_AsPongo2Prints(t *testing.T) {
	c := readCorpus(t, "remco")
	for text, want := range map[string]string{
		"a\n{% if true1 %}": "", // no such variable: refused
		"{% if exists(\"/app/name\") %}\n  x\n  {% endif %}\ny\n":                                                                                               "  x\ny\n",
		"{% for v in getvs(\"/app/hosts/*\") %}\n- {{ v }}\n{% endfor %}\nend":                                                                                  "- 10.0.0.1:80\n- 10.0.0.2:80\nend",
		"server {% for n in ls(\"/app/hosts\") %}{{ n }} {% endfor %}{# c #}\nz":                                                                                "serverabz",
		"{% if exists(\"/app/name\") -%}\n  a\n{%- endif %}\nb":                                                                                                 "ab",
		"{{ getv(\"/app/none\") }}<{% for n in ls(\"/app/name\") %}{{ n }}{% endfor %}{% with get(\"/app/none\") as p %}{{ p.Key }}{{ p.Value }}{% endwith %}>": "<>",
		"{{ getv(\"app/name\", \"d\") }}{{ getvs(\"/app/none/*\") | toJSON }}{% with get(\"/app/port\") as p %}{{ p.Key }}{{ p.Value }}{% endwith %}":           "dnull/app/port80",
		"{% for n in ls(\"/\") %}{{ n }}{% endfor %}":                                                                                                           "", // remco finds nothing there: refused
		"{% set x = \"1\" %}{% macro m() %}{{ x }}{% endmacro %}{% for n in ls(\"/app/hosts\") %}{% set x = n %}{{ x }}{{ m() }}{% endfor %}{{ x }}":            "a1b11",
		"{% set j = getv(\"/app/cfg\") | parseJSON %}\n{{ j.k }}\n":                                                                                             "v\n",
		"{% set j = \"[1,2.5,true]\" | parseJSON %}{% for x in j %}{{ x }} {% endfor %}":                                                                        "1.0000002.500000True",
	} {
		k := corpusCase{Template: text}
		r, err := translateCase("remco", k)
		if err != nil {
			t.Fatal(err)
		}
		got, err := renderCase(t, c, k, r.Settings(true))
		if want == "" {
			if r.Lost() == 0 {
				t.Errorf("%q is not refused", text)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q\n%s", text, got, err, want, r.Settings(true))
		}
	}
}

// confd: atoi of nothing fails, getvs is sorted by value.
func TestConfd_Values(t *testing.T) {
	var c corpus
	data := "data: {configs: {n: {l: {a: \"9\", b: \"10\", c: \"5\"}, empty: \"\", zero: \"0\"}}}"
	if err := yaml.UnmarshalStrict([]byte(data), &c); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{{ range getvs "/n/l/*" }}{{ . }} {{ end }}`: "10 5 9 ", `{{ atoi (getv "/n/l/b") }} {{ add (atoi (getv "/n/zero")) 1 }}`: "10 1", `{{ atoi (getv "/n/empty") }}`: "",
	} {
		k := corpusCase{Template: text}
		r, err := translateCase("confd", k)
		if err != nil {
			t.Fatal(err)
		}
		got, err := renderCase(t, &c, k, r.Settings(true))
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v; want %q\n%q", text, got, err, want, r.Notes())
		}
	}
}

// Notes are what somebody has to look at, in order.
func (r *Result) Notes() []string {
	var list []string
	r.EachNote(func(text string, _ bool) { list = append(list, text) })
	return list
}

// Two services of Synapse whose names make one label are two groups.
func TestSynapse_TwoNamesOfOneLabel(t *testing.T) {
	r, err := Synapse(nil, "synapse.conf.json", []byte(`{"services": {
		"web.a": {"discovery": {"method": "zookeeper", "hosts": ["zk1"], "path": "/one"}, "haproxy": {"port": 1}},
		"web-a": {"discovery": {"method": "zookeeper", "hosts": ["zk1"], "path": "/two"}, "haproxy": {"port": 2}}
	}, "haproxy": {}}`))
	if err != nil {
		t.Fatal(err)
	}
	got := r.Settings(true)
	for _, want := range []string{`path = "/one"`, `path = "/two"`, `members \"web-a\" }}`, `members \"web-a-2\" }}`} {
		if !strings.Contains(got, want) {
			t.Errorf("the settings lack %s:\n%s", want, got)
		}
	}
}
