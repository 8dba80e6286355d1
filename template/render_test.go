package template

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/view"
)

func render(t *testing.T, cfg Config, v *view.View, each *Each) (string, error) {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "t.tmpl"
	}
	tmpl, err := Parse(cfg)
	if err != nil {
		return "", err
	}
	got, err := tmpl.Render(t.Context(), v, each)
	return string(got), err
}

func TestParse_ErrorsWithPlace(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{"a\n  {{ kei \"web/x\" }}", `t.tmpl:2:6: function "kei" does not exist; did you mean "key"?`},
		{"{{ zzqqxx }}\n{{ qqzzyy }}", "t.tmpl:1:4: function \"zzqqxx\" does not exist\nt.tmpl:2:4: function \"qqzzyy\" does not exist"},
		{`{{ env "X" }}`, `t.tmpl:1:4: function "env": not allowed: it needs allow = ["env"]`},
		{`{{ plugin "x" }}`, `t.tmpl:1:4: function "plugin" does not exist: templates run no programs; use a hook`},
		{`{{ template "rwo" }}{{ define "row" }}{{ end }}`, `t.tmpl:1:13: template "rwo" is not defined; did you mean "row"?`},
		{"x\n{{ .a }} {{ 1x }}", `t.tmpl:2:10: bad number syntax: "1x"`},
		{"{{ if }}{{ end }}", "t.tmpl:1:1: missing value for if"},
		{"{{ if 1 }}", "t.tmpl:1:1: if has no {{ end }}"},
	} {
		_, err := Parse(Config{Name: "t.tmpl", Source: c.source})
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: got %v, want %s", c.source, err, c.want)
		}
	}
	if _, err := Parse(Config{Name: "t", Syntax: "jsno"}); err == nil || !strings.Contains(err.Error(), `did you mean "json"`) {
		t.Errorf("syntax: %v", err)
	}
}

func TestRender_ErrorsWithPlace(t *testing.T) {
	v := viewOfExamples()
	for _, c := range []struct {
		source, want string
		class        error
	}{
		{"a\n {{ key \"web/timeuot\" }}", `t.tmpl:2:5: config "web" has no key "timeuot"; did you mean "timeout"?`, ErrMissing},
		{`{{ key "wbe/x" }}`, `t.tmpl:1:4: config "wbe" is not declared; did you mean "web"?`, ErrUnknown},
		{`{{ key "web" }}`, `t.tmpl:1:4: key "web" names a config and no key: write "web/KEY"`, nil},
		{`{{ members "aip" }}`, `t.tmpl:1:4: group "aip" is not declared; did you mean "api"?`, ErrUnknown},
		{`{{ members "all/x" }}`, `t.tmpl:1:4: groups "all" has no group "x": the file stays as it is`, ErrEmptyGroup},
		{`{{ leader "x" }}`, `t.tmpl:1:4: election "x" is not declared`, ErrUnknown},
		{`{{ safeLs "web/none" }}`, `t.tmpl:1:4: there is no key below "web/none"`, ErrMissing},
		{`{{ (key "web/json" | parseJSON).prot }}`, `t.tmpl:1:22: map has no entry for key "prot"`, ErrMissing},
		{`{{ key "web/timeout" | parseInt }}`, `t.tmpl:1:24: error calling parseInt: value is not an integer (value of web/timeout)`, nil},
		{`{{ range tree "web" }}{{ .Value | parseBool }}{{ end }}`, `t.tmpl:1:35: error calling parseBool: value is not a bool (value of web/backends/a)`, nil},
		{`{{ range key "web/timeout" | len | printf "%d" }}{{ end }}`, `t.tmpl:1:43: range can't iterate over a value of this type`, nil},
		{`{{ define "x" }}{{ key "web/no" }}{{ end }}{{ executeTemplate "x" }}`, `t.tmpl:1:20: config "web" has no key "no"`, ErrMissing},
		{`{{ 1 | divide 0 }}`, `t.tmpl:1:8: error calling divide: division by zero`, nil},
	} {
		_, err := render(t, Config{Source: c.source}, &v, nil)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s\n got %v\nwant %s", c.source, err, c.want)
		}
		if c.class != nil && !errors.Is(err, c.class) {
			t.Errorf("%s: %v is not %v", c.source, err, c.class)
		}
	}
}

func TestRender_MissingKeyAllowed(t *testing.T) {
	v := viewOfExamples()
	got, err := render(t, Config{Source: `[{{ keyOrDefault "web/none" "" }}][{{ .none }}]`, MissingKeyOK: true}, &v, nil)
	if err != nil || got != "[][<no value>]" {
		t.Errorf("got %q %v", got, err)
	}
	if _, err := render(t, Config{Source: `{{ key "web/none" }}`}, &v, nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err := render(t, Config{Source: `{{ key "none/x" }}`}, &v, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("a config that is not there: %v", err)
	}
}

// TestRender_NoSecrets makes errors from a secret in every way that is known.
func TestRender_NoSecrets(t *testing.T) {
	const secret = "hunter2-9f8e7d"
	v := view.View{}.With(view.TreeOf("web", "/web", map[string]string{
		"s": secret, "json": `{"p":"` + secret + `","n":` + secret + `}`, "yaml": "a: [" + secret, "b64": "aHVudGVyMi05ZjhlN2Q=",
	}))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{
		`{{ key "web/s" | parseInt }}`, `{{ key "web/s" | parseBool }}`, `{{ key "web/s" | parseFloat }}`, `{{ key "web/json" | parseJSON }}`,
		`{{ key "web/yaml" | parseYAML }}`, `{{ range $i, $e := key "web/s" | atoi | print "x" }}{{ end }}`, `{{ range key "web/s" }}{{ end }}`,
		`{{ key "web/s" | mustFromJson }}`, `{{ mustToDate "2006" (key "web/s") }}`, `{{ semver (key "web/s") }}`, `{{ fail (key "web/s") }}`,
		`{{ fail (printf "bad %s" (key "web/s")) }}`, `{{ key "web/s" | regexMatch "[" }}`, `{{ regexMatch (key "web/s" | print "(") "x" }}`,
		`{{ index (dict "a" 1) (key "web/s") | printf "%d" | parseInt }}`, `{{ template "x" (key "web/s") }}{{ define "x" }}{{ .y }}{{ end }}`,
		`{{ executeTemplate (key "web/s") }}`, `{{ key "web/b64" | base64Decode | parseInt }}`, `{{ add 1 (key "web/s") }}`,
		`{{ (dict "a" 1 | toJSON | parseJSON).b }}{{ key "web/s" }}`, `{{ urlParse (print "http://[" (key "web/s")) }}`,
		`{{ env "SECRET" | mustFromJson }}`, `{{ fail (env "SECRET") }}`, `{{ fail (file "f") }}`, `{{ mustRegexFind (key "web/s" | print "(") "" }}`,
		`{{ fail (key "web/b64" | base64Decode | quote) }}`, `{{ derivePassword 1 (key "web/s") "" "" "" | parseInt }}`,
		`{{ index (list 1) (key "web/s") }}`, `{{ byMeta "z|int" (key "web/s") }}`, `{{ nginxString (print "$" (key "web/s")) }}`,
	} {
		_, err := render(t, Config{
			Source: source, Dir: dir, Allow: []string{AllowEnv, AllowFile},
			LookupEnv: func(string) (string, bool) { return secret, true },
		}, &v, nil)
		if err == nil {
			t.Errorf("%s: no error", source)
			continue
		}
		for cause := err; cause != nil; cause = errors.Unwrap(cause) {
			if strings.Contains(cause.Error(), "hunter2") || strings.Contains(cause.Error(), "9f8e7d") {
				t.Errorf("%s: %v", source, cause)
			}
		}
	}
}

func TestRender_SyntaxErrorHidesValues(t *testing.T) {
	v := view.View{}.With(view.TreeOf("web", "/web", map[string]string{"s": "hunter2secret"}))
	_, err := render(t, Config{Source: "a: b\nc: `{{ key \"web/s\" }}", Syntax: "yaml"}, &v, nil)
	if !errors.Is(err, ErrSyntax) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// TestRender_Limits runs templates that would not end or fill the memory.
func TestRender_Limits(t *testing.T) {
	const big = `{{ $s := "0123456789abcdef" }}{{ range 40 }}{{ $s = print $s $s }}{{ end }}`
	for _, c := range []struct {
		source string
		class  error
		where  string
	}{
		{"x\n{{ range 1000000000000 }}{{ end }}", ErrTimeout, "t.tmpl:2:"},
		{`{{ range $i := 1000000000000 }}{{ continue }}{{ end }}`, ErrTimeout, "t.tmpl:1:"},
		{`{{ range 1000000000000 }}{{ scratch.Set "a" 1 }}{{ end }}`, ErrTimeout, "t.tmpl:1:"},
		{`{{ range 1000000000000 }}0123456789{{ end }}`, ErrTooLarge, "t.tmpl"},
		{`{{ define "r" }}{{ template "r" }}{{ end }}{{ template "r" }}`, ErrDepth, "t.tmpl:1:"},
		{`{{ define "r" }}{{ executeTemplate "r" }}{{ end }}{{ executeTemplate "r" }}`, ErrDepth, "t.tmpl:1:"},
		{`{{ template "t.tmpl" }}`, ErrDepth, "t.tmpl:1:"},
		{big, ErrTooLarge, "t.tmpl"},
		{strings.Replace(big, "print $s $s", `printf "%s%s" $s $s`, 1), ErrTooLarge, "t.tmpl"},
		{strings.Replace(big, "print $s $s", "cat $s $s", 1), ErrTooLarge, "t.tmpl"},
		{`{{ regexReplaceAll "." (repeat 100000 "ab") (repeat 1000 "x") }}`, ErrTooLarge, "t.tmpl"},
		{`{{ sprig_regexReplaceAllLiteral "." (repeat 1000 "x") (repeat 100000 "ab") }}`, ErrTooLarge, "t.tmpl"},
		{`{{ $s := repeat 8000000 "x" }}{{ join $s (split "," "a,b,c,d") }}`, ErrTooLarge, "t.tmpl"},
		{strings.Replace(big, "print $s $s", `replaceAll "0" $s $s`, 1), ErrTooLarge, "t.tmpl"},
		{`{{ repeat 1000000000 "ab" }}`, ErrTooLarge, "t.tmpl"},
		{`{{ indent 1000000000 "ab" }}`, ErrTooLarge, "t.tmpl"},
		{`{{ sprig_indent 1000000000 "ab" }}`, ErrTooLarge, "t.tmpl"},
		{`{{ nindent 1000000000 "ab" }}`, ErrTooLarge, "t.tmpl"},
		{`{{ until 1000000000 }}`, ErrTooLarge, "t.tmpl"},
		{`{{ untilStep 0 1000000000 1 }}`, ErrTooLarge, "t.tmpl"},
		{`{{ seq 1000000000 }}`, ErrTooLarge, "t.tmpl"},
		{`{{ loop 1000000000 }}`, ErrTooLarge, "t.tmpl"},
		{`{{ printf "%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d%999999d" 1 }}`, ErrTooLarge, "t.tmpl"},
		{`{{ $l := list 1 }}{{ range 60 }}{{ $l = list $l $l }}{{ end }}{{ $l }}`, ErrTooLarge, "t.tmpl"},
		{`{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ $d }}`, ErrTooLarge, "t.tmpl"},
		{`{{ scratch.MapSet "a" "b" 1 }}{{ scratch.MapSet "a" "c" (scratch.Get "a") }}{{ scratch.Get "a" }}`, ErrTooLarge, "t.tmpl"},
		{`{{ scratch.Set "a" scratch }}{{ spew_sdump (scratch.Get "a") }}`, ErrTooLarge, "t.tmpl"},
	} {
		limit := time.Minute
		if errors.Is(c.class, ErrTimeout) {
			limit = 50 * time.Millisecond
		}
		tmpl, err := Parse(Config{Name: "t.tmpl", Source: c.source, Timeout: limit, MaxOutput: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		tmpl.grace = time.Minute
		_, err = tmpl.Render(t.Context(), nil, nil)
		if !errors.Is(err, c.class) || !strings.HasPrefix(err.Error(), c.where) {
			t.Errorf("%.80s: got %v, want %v at %s", c.source, err, c.class, c.where)
		}
	}
}

func TestRender_ContextEnds(t *testing.T) {
	tmpl, err := Parse(Config{Name: "t", Source: "{{ range 1000000000000 }}{{ end }}"})
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("asked to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := tmpl.Render(ctx, nil, nil); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// TestRender_Abandoned: an execution inside one endless call is left behind
// once, and the template renders again when it has ended.
func TestRender_Abandoned(t *testing.T) {
	release := make(chan struct{})
	cfg := Config{
		Name: "t", Source: `{{ env "A" }}`, Allow: []string{AllowEnv}, Timeout: 20 * time.Millisecond,
		LookupEnv: func(string) (string, bool) { <-release; return "x", true },
	}
	tmpl, err := Parse(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tmpl.grace = time.Millisecond
	for range 2 {
		if _, err := tmpl.Render(t.Context(), nil, nil); !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v", err)
		}
	}
	tmpl.cfg.Timeout, tmpl.grace = time.Minute, time.Minute
	close(release)
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if got, err := tmpl.Render(t.Context(), nil, nil); err == nil && string(got) == "x" {
			return
		}
		runtime.Gosched()
	}
	t.Error("the template never rendered again")
}

func TestRender_OnEmpty(t *testing.T) {
	for onEmpty, class := range map[string]error{"keep": ErrEmptyGroup, "": ErrEmptyGroup, "fail": nil, "render": nil} {
		v := view.View{}.With(&view.Group{Name: "api", OnEmpty: onEmpty})
		got, err := render(t, Config{Source: `{{ len (members "api") }}`}, &v, nil)
		switch {
		case onEmpty == "render" && (err != nil || got != "0"):
			t.Errorf("render: got %q %v", got, err)
		case onEmpty != "render" && err == nil:
			t.Errorf("%q: no error", onEmpty)
		case class != nil && !errors.Is(err, class), onEmpty == "fail" && errors.Is(err, ErrEmptyGroup):
			t.Errorf("%q: %v", onEmpty, err)
		}
	}
}

// TestRender_Labels: a label that is no token reaches a file by rawLabel alone.
// A member whose label the template names is left out; the others stay.
func TestRender_Labels(t *testing.T) {
	const hostile = "x; } server { listen 1;"
	bad := view.Member{Node: "a", Host: "10.0.0.1", Port: 80, Status: view.StatusUp}
	bad.SetLabels(map[string]string{"zone": hostile, hostile: "eu", "rack": "r1"})
	good := view.Member{Node: "b", Host: "10.0.0.2", Port: 80, Status: view.StatusUp}
	good.SetLabels(map[string]string{"zone": "eu"})
	v := view.View{}.With(&view.Group{Name: "api", Members: []view.Member{bad, good}})
	for source, want := range map[string]string{
		`{{ range members "api" }}{{ .Labels.zone }} {{ end }}`:                                         "eu ",
		`{{ range $m := members "api" }}{{ printf "%s" $m.Labels.zone | print }} {{ end }}`:             "eu ",
		`{{ range members "api" }}{{ default "none" .Labels.zone | toUpper }} {{ end }}`:                "EU ",
		`{{ range members "api" }}{{ range $k, $v := .Labels }}{{ $k }}={{ $v }} {{ end }}{{ end }}`:    "rack=r1 zone=eu ",
		`{{ range members "api" }}{{ with index .Labels "zone" }}{{ . }}{{ else }}-{{ end }} {{ end }}`: "- eu ",
		`{{ range members "api" }}{{ rawLabel "zone" . | nginxString }} {{ end }}`:                      `"x; } server { listen 1;" "eu" `,
		`{{ range $z, $m := members "api" | byLabel "zone" }}{{ $z }} {{ end }}`:                        " eu ",
	} {
		got, err := render(t, Config{Source: source}, &v, nil)
		if err != nil || got != want {
			t.Errorf("%s: got %q %v, want %q", source, got, err, want)
		}
	}
}

func TestRender_File(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	put(t, filepath.Join(outside, "secret"), "s")
	put(t, filepath.Join(dir, "a"), "content")
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: dir, Allow: []string{AllowFile}}
	for name, ok := range map[string]bool{
		"a": true, filepath.Join(dir, "a"): true, "link": false, "../" + filepath.Base(outside) + "/secret": false, "none": false, ".": false,
		filepath.Join(outside, "secret"): false, "/dev/zero": false,
	} {
		cfg.Source = `{{ file "` + name + `" }}`
		if got, err := render(t, cfg, nil, nil); (err == nil) != ok || ok && got != "content" {
			t.Errorf("%s: got %q %v", name, got, err)
		}
	}
}

func TestRender_Concurrently(t *testing.T) {
	v := viewOfExamples()
	tmpl, err := Parse(Config{Name: "t", Source: `{{ scratch.Set "a" .Key }}{{ range 100 }}{{ end }}{{ scratch.Get "a" }}{{ key "web/timeout" }}`})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 8)
	for i := range 8 {
		go func() {
			want := strings.Repeat("k", i+1)
			got, err := tmpl.Render(t.Context(), &v, &Each{Key: want})
			if err == nil && string(got) != want+"30s" {
				err = errors.New("got " + string(got))
			}
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
