package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// prometheusCheck asks a Prometheus server for figures, and compares each with the limits
// of the check. No figure at all is a failure, because it does not show that all is well.
type prometheusCheck struct {
	httpCheck
}

func newPrometheusCheck(c CheckConfig) Check {
	c.URL = strings.TrimSuffix(c.URL, "/") + "/api/v1/query?query=" + url.QueryEscape(c.Query)
	return &prometheusCheck{httpCheck{cfg: c}}
}

func (c *prometheusCheck) Run(ctx context.Context) (string, error) {
	resp, body, err := c.fetch(ctx) //nolint:bodyclose // fetch closes it.
	if err != nil {
		return "", err
	}
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || resp.StatusCode != http.StatusOK {
		return cmp.Or(answer.Error, string(body[:min(len(body), maxOutput)])), fmt.Errorf("the answer is %s", resp.Status)
	}
	figures, err := parseFigures(answer.Data.Result)
	if err != nil {
		return "", fmt.Errorf("result of %s: %w", c.cfg.Query, err)
	}
	return c.judge(figures)
}

// figure is the value of one series.
type figure struct {
	Metric map[string]string  `json:"metric"`
	Value  [2]json.RawMessage `json:"value"` // the time, and the value as a string
}

// parseFigures reads a vector, or a scalar.
func parseFigures(result []byte) ([]figure, error) {
	var figures []figure
	if json.Unmarshal(result, &figures) == nil {
		return figures, nil
	}
	var one figure
	if err := json.Unmarshal(result, &one.Value); err != nil {
		return nil, errors.New("neither a vector nor a scalar")
	}
	return []figure{one}, nil
}

func (c *prometheusCheck) judge(figures []figure) (string, error) {
	if len(figures) == 0 {
		return "", fmt.Errorf("%s has no data", c.cfg.Query)
	}
	var output strings.Builder
	var bad error
	for _, f := range figures {
		name := c.cfg.Query
		if len(f.Metric) > 0 {
			labels, _ := json.Marshal(f.Metric) // texts can always be encoded
			name += " " + string(labels)
		}
		text := strings.Trim(string(f.Value[1]), `"`)
		v, err := strconv.ParseFloat(text, 64)
		switch {
		case bad != nil:
		case err != nil:
			bad = fmt.Errorf("%s is %q", name, text)
		case c.cfg.Max != nil && !(v <= *c.cfg.Max): // so that NaN fails
			bad = fmt.Errorf("%s is %s, which is not at most %g", name, text, *c.cfg.Max)
		case c.cfg.Min != nil && !(v >= *c.cfg.Min):
			bad = fmt.Errorf("%s is %s, which is not at least %g", name, text, *c.cfg.Min)
		}
		if bad == nil {
			fmt.Fprintf(&output, "%s is %s\n", name, text)
		}
	}
	return output.String(), bad
}
