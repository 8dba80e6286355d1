package term

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// TestDocument_Version: every form of a document begins with the version of the format.
func TestDocument_Version(t *testing.T) {
	for want, v := range map[string]any{
		`{"apiVersion":"v1"}`:                struct{}{},
		`{"apiVersion":"v1","a":"<b>"}`:      map[string]string{"a": "<b>"},
		`{"apiVersion":"v1","item":"x"}`:     "x",
		`{"apiVersion":"v1","item":[1,2]}`:   []int{1, 2},
		`{"apiVersion":"v2","other":"kept"}`: json.RawMessage(`{"apiVersion":"v2","other":"kept"}`),
	} {
		got, err := Document(v)
		if err != nil || string(got) != want {
			t.Errorf("%v: got %s, %v; want %s", v, got, err, want)
		}
	}
}

// TestYAML_SameAsJSON: random documents say the same in every format.
func TestYAML_SameAsJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		want := map[string]any{"value": randomValue(r, 3)}
		var out bytes.Buffer
		c := Console{Out: &out, Format: "yaml"}
		if err := c.PrintObject(want); err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
		want["apiVersion"] = "v1"
		if text, _ := json.Marshal(want); !reflect.DeepEqual(plain(t, got), plain(t, want)) {
			t.Fatalf("got %s\nof %s", out.Bytes(), text)
		}
	}
}

func TestYAML_Stream(t *testing.T) {
	var out bytes.Buffer
	c := Console{Out: &out, Format: "yaml"}
	for _, name := range []string{"b", "a"} {
		if err := c.Line(struct{ Name, At string }{name, "2026-01-02T03:04:05Z"}); err != nil {
			t.Fatal(err)
		}
	}
	one := "apiVersion: v1\nName: %\nAt: \"2026-01-02T03:04:05Z\"\n"
	if want := strings.Replace(one, "%", "b", 1) + "---\n" + strings.Replace(one, "%", "a", 1); out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// randomValue is a JSON value with texts that YAML would read as something else.
func randomValue(r *rand.Rand, depth int) any {
	texts := []string{"", "yes", "null", "~", "1", "0x1f", "1e3", "<<", "a: b", "- x", "#c", "2026-01-02", "\x1b[2J", "ü\u2028\U0001f600", "\t\n x ", "'\"\\"}
	switch n := r.IntN(8); {
	case n == 0:
		return nil
	case n == 1:
		return r.IntN(2) == 0
	case n == 2:
		return float64(r.Int64N(1 << 53))
	case n == 3:
		return r.Float64()
	case n == 4 && depth > 0:
		list := make([]any, r.IntN(3))
		for i := range list {
			list[i] = randomValue(r, depth-1)
		}
		return list
	case n < 7 && depth > 0:
		m := map[string]any{}
		for range r.IntN(3) {
			if key := texts[r.IntN(len(texts))]; key != "<<" { // the library writes it as a merge
				m[key] = randomValue(r, depth-1)
			}
		}
		return m
	}
	return texts[r.IntN(len(texts))]
}

// plain is a value of YAML or JSON as encoding/json reads it.
func plain(t *testing.T, v any) any {
	t.Helper()
	data, err := json.Marshal(texted(v))
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// texted turns the maps of yaml into those of JSON.
func texted(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := map[string]any{}
		for k, e := range v {
			m[k.(string)] = texted(e)
		}
		return m
	case map[string]any:
		m := map[string]any{}
		for k, e := range v {
			m[k] = texted(e)
		}
		return m
	case []any:
		for i := range v {
			v[i] = texted(v[i])
		}
	}
	return v
}
