package tmpltest

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/template"
)

// The elements of a JUnit report that build servers read.
type (
	junitReport struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
		took     time.Duration
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure,omitempty"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the report: a suite for each file.
func WriteJUnit(path string, results []Result) error {
	report := junitReport{}
	var took time.Duration
	for _, r := range results {
		if n := len(report.Suites); n == 0 || report.Suites[n-1].Name != r.File {
			report.Suites = append(report.Suites, junitSuite{Name: r.File})
		}
		s := &report.Suites[len(report.Suites)-1]
		c := junitCase{Class: strings.TrimSuffix(strings.TrimSuffix(r.File, ".yaml"), ".yml"), Name: r.Name, Time: seconds(time.Duration(r.Took))}
		if !r.OK {
			c.Failure = &junitFailure{Message: r.Error, Text: r.Diff}
			s.Failures++
			report.Failures++
		}
		s.Cases = append(s.Cases, c)
		s.took += time.Duration(r.Took)
		s.Tests, s.Time = s.Tests+1, seconds(s.took)
		took += time.Duration(r.Took)
		report.Tests++
	}
	report.Time = seconds(took)
	data, err := xml.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append([]byte(xml.Header), append(data, '\n')...), 0o644); err != nil { //nolint:gosec // a report for others to read.
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// WriteTAP writes the results in the Test Anything Protocol, version 14.
func WriteTAP(w io.Writer, results []Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 14\n1..%d\n", len(results))
	escape := strings.NewReplacer(`\`, `\\`, "#", `\#`, "\n", " ")
	for i, r := range results {
		word := "ok"
		if !r.OK {
			word = "not ok"
		}
		fmt.Fprintf(&b, "%s %d - %s\n", word, i+1, escape.Replace(r.File+": "+r.Name))
		if r.OK {
			continue
		}
		b.WriteString("  ---\n")
		for _, f := range []struct{ key, text string }{{"message", r.Error}, {"diff", r.Diff}} {
			if f.text == "" {
				continue
			}
			fmt.Fprintf(&b, "  %s: |2-\n", f.key)
			for line := range strings.Lines(f.text) {
				b.WriteString("    " + strings.TrimRight(line, "\n") + "\n")
			}
		}
		b.WriteString("  ...\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Cover collects which lines and branches of templates the tests render. The
// zero value is ready. Templates that stand in a test file are not counted.
type Cover struct {
	templates map[string]*template.Coverage // by path, or by name and place in the settings
}

// TemplateCover is what the tests render of one template.
type TemplateCover struct {
	Template string `json:"template"` // path, or name and place in the settings
	template.Covered
}

// Report lists all templates that were tested, and those of the settings that no
// test names.
func (c *Cover) Report() []TemplateCover {
	return lists.Map(slices.Sorted(maps.Keys(c.templates)), func(name string) TemplateCover { return TemplateCover{name, c.templates[name].Covered()} })
}

// of is the coverage of one template; nil where nothing is collected.
func (c *Cover) of(f *apply.FileConfig) *template.Coverage {
	if c == nil || f.Source == "" && f.Position == "" {
		return nil
	}
	name := f.Name + " of " + shown(f.Position)
	if f.Source != "" {
		name = shown(f.Source)
	}
	if c.templates == nil {
		c.templates = map[string]*template.Coverage{}
	}
	c.templates[name] = cmp.Or(c.templates[name], &template.Coverage{})
	return c.templates[name]
}

func (c *Cover) settings(config *agent.Config) {
	if c == nil {
		return
	}
	for _, b := range config.Bundles {
		for i := range b.Templates {
			f := &b.Templates[i]
			text, err := f.Text()
			if err != nil {
				continue // the tests of it fail
			}
			cfg := f.Template(text)
			cfg.Coverage = c.of(f)
			_, _ = template.Parse(cfg) // as above
		}
	}
}

// shown is a path below the working directory as a person writes it.
func shown(path string) string {
	wd, _ := os.Getwd()
	if rel, err := filepath.Rel(wd, path); err == nil && filepath.IsAbs(path) && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}
