package translate

import (
	"math/rand/v2"
	"strings"
)

// keyWords are what the words in capital letters of a piece stand for.
var keyWords = map[string][]string{
	"KEY": {"/app/name", "/app/port", "/app/db/host", "/app/db/port", "/app/empty", "/app/none", "/app/n/a", "/app/list"},
	"SET": {"/app/name", "/app/list", "/app/n/a"},
	"DIR": {"/app", "/app/db", "/app/up", "/app/tree", "/app/none", "/app/name", "/app/tree/x"},
	"PAT": {"/app/*", "/app/up/*", "/app/tree/*/v", "/app/*/host", "/app/none/*", "/app/tree/x*/v", "/app/tree/?/v", "/app/name"},
	"VAL": {"shop", "a,b", "12", "", "x"},
}

// newKeyTrial makes a template of a piece, or two, and keys.
func newKeyTrial(pieces []string) func(*rand.Rand, string) trial {
	return func(w *rand.Rand, piece string) trial {
		t := trial{Prefix: pick(w, []string{"", "", "/prod"}), Keys: map[string]string{
			"app/name": pick(w, []string{"shop", "a,b", " x ", "Träger"}), "app/list": pick(w, []string{"a,b,c", "a", "x:1,y:2"}),
			"app/n/a": pick(w, []string{"1", "12", "-3"}), "app/n/b": "7", "app/n/c": "10",
			"app/json": `{"a":1,"s":"x y","t":true,"f":false,"n":null,"l":["x","y"],"ns":[1,2.5],"m":{"k":"v","z":"w"},"d":2.5,"e":"","o":[{"h":"h1","p":1},{"h":"h2","p":2}]}`,
			"top":      pick(w, []string{"app", "app/up"}), "app/arr": `["x","y","z"]`, "app/yaml": "a: b\nl: [x, y]\n",
		}}
		for _, key := range []string{"app/port", "app/db/host", "app/db/port", "app/empty", "app/up/a", "app/up/b10", "app/up/b9", "app/tree/x/v", "app/tree/x/w", "app/tree/y/v", "app/tree/z1/v/deep"} {
			if w.IntN(4) > 0 {
				t.Keys[key] = pick(w, []string{"10.0.0.9:80", "10.0.0.10:80", "80", "b", "a", "B"})
			}
		}
		if _, ok := t.Keys["app/empty"]; ok {
			t.Keys["app/empty"] = ""
		}
		text := piece
		if w.IntN(3) == 0 {
			text += pick(w, []string{"\n", " ", "\n  "}) + pick(w, pieces)
		}
		for word, from := range keyWords {
			for strings.Contains(text, word) {
				text = strings.Replace(text, word, pick(w, from), 1)
			}
		}
		t.Template = text
		if t.Prefix != "" {
			below := map[string]string{}
			for key, value := range t.Keys {
				below[strings.TrimPrefix(t.Prefix, "/")+"/"+key] = value
			}
			t.Keys = below
		}
		return t
	}
}

// confdPieces are constructs of templates of confd.
var confdPieces = []string{
	`{{$d := "app"}}{{$p := printf "%s%s%s" "/app/" "up" "/*"}}{{range gets $p}}{{.Key}} {{end}}{{range (printf "%s%s" "/app/" "up/*" | getvs)}}{{.}} {{end}}`,
	`{{range $n := ls "/app"}}{{range gets (printf "%s%s%s" "/app/" $n "/*")}}{{.Key}}={{.Value}};{{end}}{{range getvs (printf "/%s/%s/*" "app" $n)}}{{.}} {{end}}{{end}}`,
	`{{range gets "PAT"}}{{range gets (print .Key "/*")}}{{.Key}}{{end}}{{end}}{{range lsdir "/app"}}{{range gets (print "/app/" . "/*")}}{{.Key}}={{.Value}}{{end}}{{end}}`,
	`{{getv "app/name" "d"}}{{range ls "/"}}{{.}}{{getv (printf "/%s" .)}} {{end}}`, `{{range lsdir "/"}}{{.}}{{end}}{{range gets "/*"}}{{.Key}}{{getv .Key}}{{end}}`, `{{range gets "/app/name/"}}{{.}}{{end}}{{range gets "DIR/*/"}}{{.}}{{end}}`,
	`{{$d := "/app/up"}}{{$du := "x"}}{{range ls $d}}{{$du := printf "%s/%s" $d .}}{{getv $du}} {{end}}{{$du}}`, `{{getv (printf "/%s/name" "app")}}{{$r := "app"}}{{getv (printf "/%s/name" $r)}}{{range ls (printf "/%s" (getv "/top" "app"))}}{{.}} {{end}}`,
	`{{getv "KEY"}}`, `{{getv "KEY" "d"}}`, `{{if exists "KEY"}}y{{else}}n{{end}}`, `{{with get "SET"}}{{.Key}}={{.Value}}{{end}}`, `{{$p := get "SET"}}{{$p.Key}} {{base $p.Key}}`,
	`{{range gets "PAT"}}{{.Key}}={{.Value}};{{end}}`, `{{range $i, $p := gets "PAT"}}{{if $i}},{{end}}{{base $p.Key}}{{end}}`, `{{range gets "PAT"}}{{dir .Key}} {{end}}`,
	`{{range getvs "PAT"}}{{.}} {{end}}`, `{{join (getvs "PAT") ","}}`, `{{len (gets "PAT")}} {{len (getvs "PAT")}}`, `{{if gets "PAT"}}y{{else}}n{{end}}`,
	`{{range ls "DIR"}}{{.}} {{end}}`, `{{range lsdir "DIR"}}{{.}} {{end}}`, `{{len (ls "DIR")}}`, `{{if ls "DIR"}}y{{end}}`, `{{join (ls "DIR") "-"}}`, `{{range $i, $d := ls "DIR"}}{{$i}}{{$d}} {{end}}`,
	`{{range $d := lsdir "/app/tree"}}{{$k := printf "/app/tree/%s/v" $d}}{{if exists $k}}{{getv $k}}{{end}} {{end}}`,
	`{{range $d := lsdir "/app/tree/"}}{{$k := printf "/app/tree/%s/*" $d}}{{range gets $k}}{{base .Key}}={{.Value}} {{end}}{{end}}`,
	`{{range $d := ls "/app/up"}}{{getv (printf "/app/up/%s" $d)}} {{end}}`, `{{range ls "/app/up"}}{{getv (printf "/app/up/%s" .)}} {{end}}`,
	`{{$r := "/app/tree"}}{{range $d := lsdir $r}}{{$v := printf "%s/%s" $r $d}}{{range $x := ls $v}}{{$f := printf "%s/%s" $v $x}}{{getv $f "none"}} {{end}}{{end}}`,
	`{{$k := "/app/name"}}{{getv $k}}`, `{{$k := print "/app/" "name"}}{{getv $k}}`, `{{getv (print "/app/" "name")}}`, `{{range gets "/app/up/*"}}{{getv .Key}} {{end}}`, `{{range $p := gets "/app/up/*"}}{{getv $p.Key}} {{end}}`,
	`{{$d := json (getv "/app/json")}}{{$d.s}} {{$d.a}} {{$d.t}} {{$d.none}}`, `{{with json (getv "/app/json")}}{{range .l}}{{.}} {{end}}{{end}}`, `{{range jsonArray (getv "/app/arr")}}{{.}},{{end}}`,
	`{{$d := json (getv "/app/json")}}{{range $k, $v := $d.m}}{{$k}}={{$v}} {{end}}`, `{{range (json (getv "/app/json")).o}}{{.h}}:{{.p}} {{end}}`, `{{$d := json (getv "/app/json")}}{{if $d.none}}y{{else}}n{{end}}`,
	`{{$d := json (getv "/app/json")}}{{index $d.l 0}}{{len $d.o}}`, `{{join (split (getv "SET") ",") "-"}}`, `{{range split (getv "SET") ","}}[{{.}}]{{end}}`, `{{index (split (getv "/app/list") ",") 0}}`,
	`{{toUpper (getv "SET")}}{{toLower "AbC"}}`, `{{getv "SET" | toUpper}}`, `{{replace (getv "SET") "a" "b" -1}}`, `{{replace (getv "SET") "a" "b" 1}}`, `{{contains (getv "SET") "a"}}`, `{{trimSuffix (getv "SET") "p"}}`,
	`{{base64Encode (getv "SET")}}`, `{{base64Decode "aGk="}}`, `{{parseBool "true"}}`, `{{range reverse (getvs "PAT")}}{{.}} {{end}}`, `{{range reverse (ls "DIR")}}{{.}} {{end}}`, `{{range reverse (gets "/app/up/*")}}{{.Key}} {{end}}`,
	`{{add 1 2}} {{sub 5 2}} {{div 7 2}} {{mod 7 2}} {{mul 2 3}}`, `{{range seq 1 3}}{{.}} {{end}}`, `{{range $i := seq 0 2}}s{{$i}} {{end}}`, `{{atoi "12"}}`, `{{add (atoi (getv "/app/n/a")) 1}}`, `{{if gt (atoi (getv "/app/n/b")) 5}}y{{end}}`,
	`{{$m := map "a" "1" "b" 2}}{{$m.a}}{{$m.b}}{{index $m "a"}}`, `{{define "h"}}<{{.name}} {{.v}}>{{end}}{{template "h" map "name" "n" "v" 1}}`, `{{define "h"}}<{{.}}>{{end}}{{range getvs "PAT"}}{{template "h" .}}{{end}}`,
	`{{getenv "ZKAGENT_NONE"}}{{getenv "ZKAGENT_NONE" "d"}}`, `{{base "/a/b"}} {{dir "/a/b"}}`, `{{range sortByLength (ls "DIR")}}{{.}} {{end}}`, `{{range sortKVByLength (gets "/app/up/*")}}{{.Key}} {{end}}`,
	"{{- getv \"SET\" -}}  x", "a\n{{- range ls \"DIR\" }}\n  - {{ . }}\n{{- end }}\nz", `{{/* c */}}{{getv "SET"}}`, `{{if and (exists "KEY") (exists "KEY")}}y{{end}}{{if or (exists "KEY") (not (exists "KEY"))}}z{{end}}`,
	`{{if eq (getv "KEY" "d") "shop"}}y{{else if eq (getv "KEY" "d") "80"}}m{{else}}n{{end}}`, `{{$x := getv "KEY" "VAL"}}{{if $x}}{{$x}}{{else}}-{{end}}`, `{{printf "%s:%s" (getv "SET") "80"}}`, `{{printf "%d" (len (ls "DIR"))}}`,
	`{{$x := split "a:b" ":"}}{{index $x 1}}`, `{{with $x := getv "SET"}}{{$x}}{{end}}`, `{{range $i, $x := split (getv "/app/list") ","}}{{if $i}};{{end}}{{$x}}{{end}}`, `{{getv "KEY" (getv "SET")}}`, `{{len (getv "SET")}}`, `{{html (getv "SET")}}`,
	`{{range gets "/app/up/*"}}{{$k := base .Key}}{{$d := split .Value ":"}}{{$k}}={{index $d 0}} {{end}}`, `{{"/app/name" | getv}}`, `{{$v := ""}}{{range getvs "PAT"}}{{$v = print $v "," .}}{{end}}{{$v}}`, `{{range $k, $v := map "b" 1 "a" 2}}{{$k}}{{$v}}{{end}}`,
}

// remcoPieces are constructs of templates of remco.
var remcoPieces = []string{
	`{{ getv("KEY") }}`, `{{ getv("KEY", "d") }}`, `{% if exists("KEY") %}y{% else %}n{% endif %}`, `{{ exists("KEY") }}`, `{% with get("SET") as p %}{{ p.Key }}={{ p.Value }}{% endwith %}`,
	`{% for p in gets("PAT") %}{{ p.Key }}={{ p.Value }};{% endfor %}`, `{% for v in getvs("PAT") %}{{ v }} {% endfor %}`, `{% for n in ls("DIR") %}{{ n }} {% empty %}none{% endfor %}`, `{% for n in lsdir("DIR") %}{{ n }} {% endfor %}`,
	`{% for n in lsdir("/app/tree") %}{% if exists(printf("/app/tree/%s/v", n)) %}{{ getv(printf("/app/tree/%s/v", n)) }}{% endif %} {% endfor %}`, `{% for n in ls("/app/up") %}{{ getv("/app/up/" + n) }} {% endfor %}`,
	`{% for p in gets("/app/up/*") %}{{ getv(p.Key) }} {{ p.Key|base }}{% endfor %}`, `{% for n in lsdir("/app/tree") %}{% for p in gets(printf("/app/tree/%s/*", n)) %}{{ p.Key|base }} {% endfor %}{% endfor %}`,
	"{% for v in getvs(\"PAT\") %}\n  - {{ v }}\n{% endfor %}\nend", "  {% if exists(\"KEY\") %}\n a\n  {% elif true %}\n b\n  {% endif %}\nz", `{% for v in getvs("PAT") %}{{ forloop.Counter }}{{ forloop.Counter0 }}{% if forloop.First %}f{% endif %}{% if not forloop.Last %},{% endif %}{% endfor %}`,
	`{% for v in ls("DIR") %}{{ forloop.Revcounter }}/{{ forloop.Revcounter0 }} {{ forloop.First }} {% endfor %}`, `{% for v in getvs("PAT") reversed %}{{ v }} {% endfor %}`, `{% for v in ls("DIR") sorted %}{{ v }} {% endfor %}`, `{% for v in getvs("/app/n/*") reversed sorted %}{{ v }} {% endfor %}`,
	`{% for n in lsdir("/app") | sortByLength reversed %}{{ n }} {% endfor %}`, `{% for p in gets("/app/up/*") reversed %}{{ p.Key }} {% endfor %}`, `{% for v in getv("/app/list") | split:"," %}[{{ v }}]{% endfor %}`, `{{ getv("/app/list") | split:"," | join:"-" }}`,
	`{% set x = getv("SET") %}{{ x }}{% set x = "b" %}{{ x|upper }}`, `{% set n = 0 %}{% for v in getvs("PAT") %}{% set n = n + 1 %}{{ n }} {% endfor %}{{ n }}`, `{% if exists("KEY") %}{% set x = "1" %}{% else %}{% set x = "2" %}{% endif %}{{ x }}`,
	`{% set j = getv("/app/json") | parseJSON %}{{ j.a }} {{ j.s }} {{ j.t }} {{ j.f }} {{ j.n }} {{ j.none }} {{ j.d }}`, `{% set j = getv("/app/json") | parseJSON %}{% for v in j.l %}{{ v }},{% endfor %}{{ j.l.0 }}{{ j.l|length }}{{ j.s|length }}`,
	`{% set j = getv("/app/json") | parseJSON %}{% for k in j.m sorted %}{{ k }}{% endfor %}`, `{% set j = getv("/app/json") | parseJSON %}{% for o in j.o %}{{ o.h }}:{{ o.p }} {% endfor %}`, `{% set j = getv("/app/yaml") | parseYAML %}{{ j.a }}{% for x in j.l %}{{ x }}{% endfor %}`,
	`{% set j = getv("/app/json") | parseJSON %}{% for k, v in j.m sorted %}{{ k }}{{ v }}{% endfor %}`, `{% set j = getv("/app/json") | parseJSON %}{% if j.none %}y{% else %}n{% endif %}{% if j.t %}t{% endif %}{% if j.e %}e{% endif %}{{ j.none|default:"d" }}`,
	`{% set j = getv("/app/json") | parseJSON %}{% if j.s == "x y" %}y{% endif %}{% if j.a == 1 %}one{% endif %}{% if j.none == "x" %}x{% endif %}{% if j.s != "q" %}z{% endif %}`, `{{ getv("/app/json") | parseJSON | mapValue:"s" }}`, `{{ getv("/app/json") | parseJSON | toJSON }}`,
	`{{ getv("/app/list") | split:"," | index:"0" }}`, `{{ getv("SET")|upper|lower }}{{ "fOO bar"|title }}`, `{{ getv("SET")|length }}`, `{{ getv("KEY", "")|default:"none" }}`, `{{ getv("SET") | base64 }}`, `{{ "/a/b"|base }}{{ "/a/b"|dir }}`, `{{ getvs("PAT")|length }} {{ gets("PAT")|length }}`,
	`{{ getv("SET")|cut:"," }}`, `{{ ls("DIR")|join:"," }}`, `{{ ls("DIR")|first }}{{ getvs("PAT")|last }}`, `{{ getvs("PAT") | toJSON }}`, `{{ replace(getv("SET"), "a", "b", -1) }}`, `{% if contains(getv("SET"), "a") %}y{% endif %}`, `{{ contains(getv("SET"), "a") }}`, `{{ getenv("ZKAGENT_NONE", "d") }}{{ getenv("ZKAGENT_NONE") }}`,
	`{{ getv("/app/n/a")|parseInt }} {{ getv("/app/n/b")|integer + 2 }} {{ 7 / 2 }} {{ 7 % 2 }} {{ 2 * 3 - 1 }}`, `{{ "1.5"|parseFloat }} {{ 1.5 }} {{ 3.14159|floatformat:2 }}`, `{% if getv("/app/n/b")|parseInt > 5 %}y{% endif %}{% if 3 <= 2 %}n{% endif %}`, `{{ true }} {{ 1 == 1 }} {{ "a" == "a" }}`,
	`{% if "a" == 1 %}y{% else %}n{% endif %}{% if getv("SET") == "shop" %}s{% endif %}`, `{% if exists("KEY") and exists("KEY") %}a{% endif %}{% if exists("KEY") or exists("KEY") %}o{% endif %}{% if not exists("KEY") %}n{% endif %}`, `{% if exists("KEY") && not exists("KEY") || true %}q{% endif %}`,
	`{% if "a" in getv("SET") %}y{% endif %}{% if "b9" in ls("/app/up") %}u{% endif %}`, `{% set j = getv("/app/json") | parseJSON %}{% if "x" in j.l %}l{% endif %}{% if "k" in j.m %}m{% endif %}{% if "x" in j.s %}s{% endif %}`,
	`{% macro m(a, b="z") %}<{{ a }}{{ b }}>{% endmacro %}{{ m("1") }}{{ m(getv("SET"), "y") }}`, "{% comment %} {{ nothing }} {% endcomment %}a{# b #}c", `{% verbatim %}{{ x }}{% endverbatim %}`, `{% autoescape off %}{{ getv("SET") }}{% endautoescape %}`, `{% with a="1" b=getv("SET") %}{{ a }}{{ b }}{% endwith %}`,
	`{% ifequal getv("SET") "shop" %}y{% else %}n{% endifequal %}{% ifnotequal "a" "b" %}d{% endifnotequal %}`, `{{ exists("KEY")|yesno:"on,off" }}`, `{{ printf("%s-%d", getv("SET"), 5) }}`, `{{ "a" + "b" }}{{ "n" + 1 }}`, `{{ "abc"|ljust:5 }}|{{ "abc"|rjust:5 }}|`, `{{ 6|divisibleby:3 }}{{ 5|stringformat:"%03d" }}`,
	`{% set m = createMap() %}{{ m.Set("a", "1") }}{{ m.Set("b", getv("SET")) }}{{ m | toJSON }}{{ m.Get("a") }}`, `{% set s = createSet() %}{{ s.Append("b") }}{{ s.Append("a") }}{{ s.Append("b") }}{% for x in s.SortedSet() %}{{ x }}{% endfor %}{{ s.Contains("a") }}`,
	"{% for n in ls(\"DIR\") -%}\n {{ n }}\n{%- endfor %}|", `{% for v in getvs("PAT") %}{% set x = v %}{% endfor %}{% for v in ls("DIR") %}{% for w in getvs("PAT") %}{{ v }}{{ w }} {% endfor %}{% endfor %}`, `{% if exists("SET") %}{{ getv("SET") }}{% endif %}{{ "{{" }}{{ '}' }}`, `{{ gets("PAT") | toJSON }}`, `{{ getv("/app/json")|parseJSON|toYAML }}`,
	`{% for d in lsdir("/app") %}{% for p in gets("/app/" + d + "/*") %}{{ d }}{{ p.Key|base }}{{ p.Value }}{% endfor %}{% endfor %}`, `{% for p in gets("PAT") %}{% set b = p.Key|base %}{% if exists("/app/" + b) %}{{ getv("/app/" + b + "") }}{{ b + "x" }}{% endif %}{% endfor %}`,
	`{{ getv("app/name", "d") }}{{ getv("app/name") }}`, `{% for n in ls("DIR/") %}{{ n }} {% endfor %}`, `{% for n in ls("/") %}{{ n }} {% endfor %}`, `{% with get("KEY") as p %}{{ p.Key }}={{ p.Value }}{% endwith %}`,
	`{% set b = "/app/tree" %}{% set bx = "y" %}{% macro m(q) %}{% set v = printf("%s/v", q) %}{{ getv(v, bx) }}{% endmacro %}{% for n in lsdir(b) %}{% set bx = printf("%s/%s", b, n) %}{{ m(bx) }}{% endfor %}`,
	`{% set j = getv("/app/json") | parseJSON %}{% for v in j.ns %}{{ v }} {% endfor %}{{ j.l|first }}{{ j.m.k|upper }}{{ j.a + 1 }}`, `{% for v in getvs("/app/none/*") %}{{ v }}{% empty %}-{% endfor %}`, `{% spaceless %} <a> </a> {% endspaceless %}`, `{{ getv("SET")|truncatechars:3 }}`,
}
