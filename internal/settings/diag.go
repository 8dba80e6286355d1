package settings

import (
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// add collects diagnostics.
func (s *Settings) add(diags ...*hcl.Diagnostic) {
	for _, d := range diags {
		if d != nil {
			explain(d)
			s.Diagnostics = append(s.Diagnostics, d)
		}
	}
}

// errorAt reports an error: a short summary, and a detail that names the
// value and the cure.
func (s *Settings) errorAt(at hcl.Range, summary, detail string, args ...any) {
	s.add(&hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at})
}

// warnAt reports a warning.
func (s *Settings) warnAt(at hcl.Range, summary, detail string, args ...any) {
	s.add(&hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at})
}

// hostAt reports what is missing on this host: an error, or with
// [Options.Offline] a warning.
func (s *Settings) hostAt(at hcl.Range, summary, detail string, args ...any) {
	if s.opts.Offline {
		s.warnAt(at, summary, detail, args...)
		return
	}
	s.errorAt(at, summary, detail, args...)
}

// Write prints the diagnostics one a line as "file:line:column: summary;
// detail", or, with width > 0, for people: with the line of the file.
func (s *Settings) Write(w io.Writer, width uint, color bool) error {
	if width > 0 {
		return hcl.NewDiagnosticTextWriter(w, s.Sources, width, color).WriteDiagnostics(s.Diagnostics)
	}
	for _, d := range s.Diagnostics {
		if _, err := fmt.Fprintln(w, Line(d)); err != nil {
			return err
		}
	}
	return nil
}

// Line is a diagnostic in one line.
func Line(d *hcl.Diagnostic) string {
	var b strings.Builder
	if d.Subject != nil {
		fmt.Fprintf(&b, "%s:%d:%d: ", d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column)
	}
	if d.Severity == hcl.DiagWarning {
		b.WriteString("warning: ")
	}
	b.WriteString(d.Summary)
	if d.Detail != "" {
		b.WriteString("; ")
		b.WriteString(strings.Join(strings.Fields(d.Detail), " "))
	}
	return b.String()
}

// sentence ends a text with a full stop, unless it ends as a sentence does.
func sentence(text string) string {
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

// Severity is "error" or "warning".
func Severity(d *hcl.Diagnostic) string {
	if d.Severity == hcl.DiagWarning {
		return "warning"
	}
	return "error"
}
