package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Each figure of the result is compared with both limits. No figure, one that is no
// number, and an error of the server are failures. The error names the figure.
func TestPrometheusCheck(t *testing.T) {
	vector := func(values ...string) string {
		var list []string
		for i, v := range values {
			list = append(list, fmt.Sprintf(`{"metric":{"host":"h%d"},"value":[1435781451.781,%q]}`, i, v))
		}
		return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(list, ",") + `]}}`
	}
	for name, c := range map[string]struct {
		status int
		answer string
		want   string // in the error; empty: none
	}{
		"below":    {200, vector("0.01", "0.05"), ""},
		"equal":    {200, vector("0.1"), ""},
		"above":    {200, vector("0.01", "0.25"), `rate is 0.25, which is not at most 0.1`},
		"under":    {200, vector("0.0001"), `is 0.0001, which is not at least 0.001`},
		"NaN":      {200, vector("NaN"), "is NaN, which"},
		"none":     {200, vector(), "errors / all has no data"},
		"scalar":   {200, `{"data":{"resultType":"scalar","result":[1,"0.7"]}}`, "errors / all is 0.7, which is not at most 0.1"},
		"matrix":   {200, `{"data":{"resultType":"matrix","result":{}}}`, "neither a vector nor a scalar"},
		"error":    {400, `{"status":"error","error":"parse error"}`, "400 Bad Request"},
		"no JSON":  {200, `<html>`, "the answer is 200 OK"},
		"no value": {200, `{"data":{"result":[{"metric":{}}]}}`, `is ""`},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/query" || r.FormValue("query") != "errors / all" {
				t.Errorf("asked for %s", r.URL)
			}
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.answer))
		}))
		limit, least := 0.1, 0.001
		check, err := NewCheck(CheckConfig{Kind: CheckPrometheus, URL: server.URL + "/", Query: "errors / all", Max: &limit, Min: &least}, nil)
		if err != nil {
			t.Fatal(err)
		}
		output, err := check.Run(t.Context())
		want := strings.Replace(c.want, "rate", `errors / all {"host":"h1"}`, 1)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
		if name == "error" && output != "parse error" {
			t.Errorf("the output is %q", output)
		}
		server.Close()
	}
	if err := (CheckConfig{Kind: CheckPrometheus, URL: "http://127.0.0.1", Query: "up"}).Validate(); err == nil {
		t.Error("a check without a limit is valid")
	}
}
