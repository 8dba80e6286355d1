package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/template"
)

//go:generate go test -run TestReference -update .

var update = flag.Bool("update", false, "write the pages of docs/reference")

const generated = "<!-- Generated from the code by \"make gen\"; do not edit. -->\n\n"

// TestReference: the generated pages are those of the code.
func TestReference(t *testing.T) {
	for name, page := range map[string]string{
		"cli.md": cliPage(), "exit-codes.md": exitPage(), "functions.md": functionsPage(false), "sprig.md": functionsPage(true),
		"metrics.md": metricsPage(t), "conditions.md": conditionsPage(),
	} {
		file := filepath.Join("../../docs/reference", name)
		if *update {
			if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != page {
			t.Errorf("%s is not what the code says; run \"make gen\"", file)
		}
	}
}

func exitPage() string {
	var b strings.Builder
	b.WriteString("# Exit codes\n\n" + generated + "| code | meaning | when |\n|---|---|---|\n")
	for _, e := range exitCodes {
		_, _ = fmt.Fprintf(&b, "| %d | %s | %s |\n", e.code, e.text, e.when)
	}
	b.WriteString("| 126, 127 | the command cannot be executed, is not found | `lock`, `elect` and other commands that run a command: as in a shell. |\n" +
		"| 128+n | ended by signal n | The command, or zkagent itself. |\n| other | the code of the command | `lock`, `elect` and other commands that run a command pass it on. |\n\n" +
		"`zkagent status --check` is a monitoring plugin: 0 fine, 1 warning, 2 critical, 3 unknown.\n\n" +
		"With `-o json` a failure is also an object on standard output: `{\"apiVersion\":\"v1\",\"error\":{\"code\":...,\"message\":...,\"hint\":...}}`.\n")
	return b.String()
}

func conditionsPage() string {
	var b strings.Builder
	b.WriteString("# Conditions\n\n" + generated +
		"An open condition is a problem with a name and the time when it began. It is shown by\n" +
		"`zkagent status`, by `zkagent events`, on the page, and as the metric `zkagent_condition`. Codes do not change.\n\n")
	for _, e := range condition.Kinds() {
		_, _ = fmt.Fprintf(&b, "## %s\n\n%s\n\n", e.Code, e.Meaning)
		if e.Subject != "" {
			_, _ = fmt.Fprintf(&b, "- **About:** the %s.\n", e.Subject)
		}
		_, _ = fmt.Fprintf(&b, "- **In use meanwhile:** %s\n- **Do:** %s\n\n", e.Use, e.Do)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// functionsPage has the functions of sprig, or all others.
func functionsPage(sprig bool) string {
	var b strings.Builder
	if sprig {
		b.WriteString("# Template functions of sprig\n\n" + generated +
			"Templates may use the functions of [sprig](https://masterminds.github.io/sprig/), as in Helm. The functions of zkagent itself are\n" +
			"in [functions.md](functions.md). The examples are run as tests.\n")
	} else {
		b.WriteString("# Template functions\n\n" + generated +
			"Templates are Go's [text/template](https://pkg.go.dev/text/template). A missing key or an unknown name is an error. The examples\n" +
			"are run as tests. Nothing here reaches ZooKeeper, the network, or (unless `allow` permits it) the environment and files.\n" +
			"The functions of sprig are in [sprig.md](sprig.md).\n")
	}
	group := ""
	for _, f := range template.Functions() {
		if strings.HasPrefix(f.Group, "Sprig") != sprig {
			continue
		}
		if f.Group != group {
			group = f.Group
			_, _ = fmt.Fprintf(&b, "\n## %s\n", group)
		}
		_, _ = fmt.Fprintf(&b, "\n### %s\n\n", f.Name)
		if f.Signature != "" {
			_, _ = fmt.Fprintf(&b, "`%s`\n\n", f.Signature)
		}
		b.WriteString(f.Summary + ".")
		if f.Alias != "" {
			_, _ = fmt.Fprintf(&b, " Also `%s`.", f.Alias)
		}
		if f.Allow != "" {
			_, _ = fmt.Fprintf(&b, " Only with `allow = [%q]`.", f.Allow)
		}
		_, _ = fmt.Fprintf(&b, "\n\n    %s\n", f.Example)
		if !f.Varies {
			b.WriteString("\ngives\n\n")
			for line := range strings.SplitSeq(f.Result, "\n") {
				b.WriteString(strings.TrimRight("    "+line, " ") + "\n")
			}
		}
	}
	return b.String()
}

// descriptions is a Registerer that keeps what is registered.
type descriptions struct{ list []prometheus.Collector }

func (d *descriptions) Register(c prometheus.Collector) error { d.MustRegister(c); return nil }
func (d *descriptions) MustRegister(c ...prometheus.Collector) {
	d.list = append(d.list, c...)
}
func (d *descriptions) Unregister(prometheus.Collector) bool { return false }

var descForm = regexp.MustCompile(`fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"), .*variableLabels: \{([^}]*)\}`)

func metricsPage(t *testing.T) string {
	var all descriptions
	agent.DescribeMetrics(&all)
	var rows []string
	for _, c := range all.list {
		ch := make(chan *prometheus.Desc, 64)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			m := descForm.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("description %s", d)
			}
			help, err := strconv.Unquote(m[2])
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", m[1], metricKind(c), strings.ReplaceAll(m[3], ",", ", "), help))
		}
	}
	slices.Sort(rows)
	return "# Metrics\n\n" + generated +
		"`/metrics` of `http { listen }` serves them, with those of the Go runtime and the process. Members, keys and subjects are never\n" +
		"labels, unless the settings bound their number: names of groups, configs, templates and hooks.\n\n" +
		"| metric | type | labels | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"
}

func metricKind(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	case *prometheus.GaugeVec, prometheus.Gauge:
		return "gauge"
	case prometheus.Counter:
		return "counter"
	default: // agent: what the record says
		return "gauge"
	}
}

func cliPage() string {
	var b bytes.Buffer
	root := newRoot(newGlobals(nil, nil, nil))
	b.WriteString("# Command line\n\n" + generated +
		"`zkagent man --directory DIR` writes the same as man pages. Data goes to standard output, talk to standard error. Exit codes:\n" +
		"[exit-codes.md](exit-codes.md).\n\n## Common flags\n\n")
	cliFlags(&b, root.PersistentFlags())
	for _, c := range root.Commands() {
		cliCommand(&b, c)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func cliCommand(b *bytes.Buffer, c *cobra.Command) {
	if !c.IsAvailableCommand() || c.Name() == "help" {
		return
	}
	_, _ = fmt.Fprintf(b, "## %s\n\n", c.CommandPath())
	if c.Runnable() && c.Annotations["parent"] == "" {
		_, _ = fmt.Fprintf(b, "    %s\n\n", c.UseLine())
	}
	b.WriteString(strings.TrimSpace(cmp.Or(c.Long, c.Short+".")) + "\n\n")
	if repeatsRolloutFlags(c) {
		hideRolloutFlags(c, true)
	}
	cliFlags(b, c.NonInheritedFlags())
	if repeatsRolloutFlags(c) {
		b.WriteString(rolloutHelp + "\n\n")
	}
	if c.Example != "" {
		b.WriteString("Examples:\n\n")
		for line := range strings.SplitSeq(strings.TrimRight(c.Example, "\n"), "\n") {
			_, _ = fmt.Fprintf(b, "    %s\n", strings.TrimSpace(line))
		}
		b.WriteString("\n")
	}
	cliSeeAlso(b, c)
	for _, sub := range c.Commands() {
		cliCommand(b, sub)
	}
}

// cliSeeAlso links the command above, and those below.
func cliSeeAlso(b *bytes.Buffer, c *cobra.Command) {
	list := c.Commands()
	if c.Parent().HasParent() {
		list = append([]*cobra.Command{c.Parent()}, list...)
	}
	var links []string
	for _, other := range list {
		if path := other.CommandPath(); other.IsAvailableCommand() && other.Name() != "help" {
			links = append(links, fmt.Sprintf("[%s](#%s)", path, strings.ReplaceAll(path, " ", "-")))
		}
	}
	if len(links) > 0 {
		b.WriteString("See also: " + strings.Join(links, ", ") + ".\n\n")
	}
}

func cliFlags(b *bytes.Buffer, flags *pflag.FlagSet) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			name += " " + value
		}
		usage = strings.ReplaceAll(usage, "|", `\|`)
		def := f.DefValue
		switch def {
		case "", "false", "0", "0s", "[]", defaultSite():
			def = ""
		default:
			def = "`" + def + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, def, usage))
	})
	if len(rows) > 0 {
		b.WriteString("| flag | default | meaning |\n|---|---|---|\n" + strings.Join(rows, "") + "\n")
	}
}

// defaultSite is a default that depends on the host.
func defaultSite() string {
	host, _ := os.Hostname()
	return host
}
