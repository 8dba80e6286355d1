package settings

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/template"
)

func (s *Settings) add(diags ...*hcl.Diagnostic) {
	for _, d := range diags {
		// Say what a name of another program is called here.
		if m := unexpected.FindStringSubmatch(d.Detail); m != nil && calledHere[m[1]] != "" && !strings.Contains(d.Detail, "Did you mean") {
			d.Detail += " Here it is " + calledHere[m[1]] + "."
		}
		s.Diagnostics = append(s.Diagnostics, d)
	}
}

// errorAt reports an error: a short summary, and a detail that names the
// value and the cure.
func (s *Settings) errorAt(at hcl.Range, summary, detail string, args ...any) {
	s.add(&hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: &at})
}

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
		b.WriteString("; " + strings.Join(strings.Fields(d.Detail), " "))
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

// didYouMean is a sentence with the candidate nearest to the text, when one
// is near enough to be meant.
func didYouMean(text string, candidates []string) string {
	if best := template.Nearest(text, candidates); best != "" {
		return " Did you mean " + strconv.Quote(best) + "?"
	}
	return ""
}

// calledHere are names that other programs have for what is called otherwise here.
var calledHere = map[string]string{
	"perms": `mode = "0644"`, "user": "owner", "uid": "owner", "gid": "group", "dest": "destination", "dst": "destination", "src": "source",
	"command": `reload { command = ["...", "..."] }`, "reload_cmd": `reload { command = ["...", "..."] }`, "reload_command": `reload { command = ["...", "..."] }`,
	"check_cmd": `check { command = ["...", staged] }`, "command_timeout": `timeout in the reload block`,
	"left_delimiter": `delimiters = ["[[", "]]"]`, "right_delimiter": `delimiters = ["[[", "]]"]`, "create_dest_dirs": "create_dirs", "make_directories": "create_dirs",
	"ca_cert": "ca_file", "ca": "ca_file", "cert": "cert_file", "key": "key_file", "client_cert": "cert_file", "client_key": "key_file",
	"hosts": "servers", "zk_hosts": "servers", "nodes": "servers", "zk_path": "group", "prefix": "path", "check_interval": "interval in each check block",
	"use_previous_backends": "on_empty", "default_servers": "an {{ else }} in the template",
	"vault": "credential(\"NAME\"), or credential in a template; see docs/secrets.md", "consul": "zookeeper { servers = [...] }",
	"min_reload_interval": "min_interval in the reload block", "deduplicate": "nothing: a watch costs ZooKeeper little",
}

// unexpected are the errors of HCL about a name that it does not know.
var unexpected = regexp.MustCompile(`^(?:An argument named|Blocks of type) "([^"]+)"`)

func quoted(words []string) string {
	var q []string
	for _, w := range words {
		q = append(q, strconv.Quote(w))
	}
	return strings.Join(q, ", ")
}
