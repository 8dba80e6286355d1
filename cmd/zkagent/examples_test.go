package main

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamples_TemplatesAreTested runs zkagent test over the examples: every
// template of an example has a test of its own, and all pass.
func TestExamples_TemplatesAreTested(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report.xml")
	var out, talk bytes.Buffer
	code := run([]string{"test", "../../examples", "--junit", report}, strings.NewReader(""), &out, &talk)
	if code != 0 {
		t.Fatalf("zkagent test: exit code %d\n%s%s", code, &out, &talk)
	}
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var suites struct {
		Suites []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name  string `xml:"name,attr"`
				Class string `xml:"classname,attr"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &suites); err != nil {
		t.Fatalf("the report is not XML: %v\n%s", err, data)
	}
	tested := map[string]int{} // tests by the directory of their example
	for _, s := range suites.Suites {
		tested[filepath.Base(filepath.Dir(s.Name))] += len(s.Cases)
	}
	templates, err := filepath.Glob("../../examples/*/*.tmpl")
	if err != nil || len(templates) == 0 {
		t.Fatal("there are no templates", err)
	}
	for _, name := range templates {
		dir, source := filepath.Dir(name), `"`+filepath.Base(name)+`"`
		if tested[filepath.Base(dir)] == 0 {
			t.Errorf("%s has no unit test", name)
		}
		if settings := readAll(t, dir, "*.hcl"); strings.Contains(settings, source) &&
			!strings.Contains(readAll(t, dir, "*_test.yaml"), "template: "+nameOf(t, settings, source)) {
			t.Errorf("no test of %s names the template of the settings that uses it", name)
		}
	}
}

// readAll is the text of all files of a directory that match.
func readAll(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(data)
	}
	return b.String()
}

// nameOf is the label of the template block with the quoted source.
func nameOf(t *testing.T, settings, source string) string {
	t.Helper()
	before, _, _ := strings.Cut(settings, source)
	block := strings.LastIndex(before, "\ntemplate ")
	if block < 0 {
		t.Fatalf("no template block names %s", source)
	}
	return strings.SplitN(before[block:], `"`, 3)[1]
}
