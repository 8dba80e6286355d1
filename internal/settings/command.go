package settings

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/zkagent/zkagent/internal/command"
)

// vars says which variables a command may refer to.
type vars struct {
	staged bool // staged, staged_dir, destination
	each   bool // each.key, each.value
}

// values returns the variables with the values of one run; without a run, for the check
// on load, they are not known.
func (v vars) values(now *command.Vars) map[string]cty.Value {
	m := map[string]cty.Value{}
	add := func(name string, known cty.Value) {
		if now == nil {
			known = cty.UnknownVal(cty.String)
		}
		m[name] = known.Mark(foreignMark(name))
	}
	run := cmp.Or(now, &command.Vars{})
	if v.staged {
		add("staged", cty.StringVal(run.Staged))
		add("staged_dir", cty.StringVal(run.StagedDir))
		add("destination", cty.StringVal(run.Destination))
	}
	switch {
	case v.each && now == nil:
		m["each"] = cty.ObjectVal(map[string]cty.Value{"key": cty.UnknownVal(cty.String), "value": cty.DynamicVal}).Mark(foreignMark("each"))
	case v.each && now.Each != nil:
		m["each"] = eachValue(now.Each).Mark(foreignMark("each"))
	}
	return m
}

// command reads an argument list whose elements are evaluated each time that
// the command runs, and once now with unknown values.
func (s *Settings) command(e expression, v vars) command.Command {
	if !e.Set {
		return command.Command{}
	}
	file := e.At.Filename
	got, diags := s.evaluate(e, s.context(file, v.values(nil)))
	if diags.HasErrors() {
		return command.Command{}
	}
	if _, _, err := arguments(e.Name, got); err != nil {
		s.errorAt(e.At, err.summary, "%s.", err.text)
		return command.Command{}
	}
	base := s.context(file, nil)
	return command.Command{Text: s.text(e.At), Args: func(now command.Vars) ([]string, error) {
		v, diags := e.Value(&hcl.EvalContext{Functions: base.Functions, Variables: v.values(&now)})
		if diags.HasErrors() {
			return nil, fmt.Errorf("evaluate command: %s", Line(diags[0]))
		}
		args, known, err := arguments(e.Name, v)
		switch {
		case err != nil:
			return nil, fmt.Errorf("evaluate command at %s: %s", place(e.At), err.text)
		case !known:
			return nil, fmt.Errorf("evaluate command at %s: it has no value", place(e.At))
		}
		return args, nil
	}}
}

const commandForm = `a list of arguments, as in ["nginx", "-t"]; there is no shell unless you write one: ["sh", "-c", "..."]`

// badCommand is why a value is not a command.
type badCommand struct{ summary, text string }

func bad(summary, format string, args ...any) *badCommand {
	return &badCommand{summary, fmt.Sprintf(format, args...)}
}

// arguments returns the argument list that a value is, and whether all of it is known.
func arguments(name string, v cty.Value) ([]string, bool, *badCommand) {
	v, scripted := plainCommand(v)
	ty := v.Type()
	switch {
	case scripted != nil:
		return nil, false, bad("Data in a command", "%v", scripted)
	case ty != cty.DynamicPseudoType && !ty.IsTupleType() && !ty.IsListType():
		return nil, false, bad("Incorrect value type", "%q must be %s", name, commandForm)
	case !v.IsKnown():
		return nil, false, nil
	case v.IsNull() || v.LengthInt() == 0:
		return nil, false, bad("Empty command", "%q must have at least one element: the program to run", name)
	}
	var args []string
	for i, e := range v.AsValueSlice() {
		arg, err := convert.Convert(e, cty.String)
		switch {
		case err != nil || arg.IsKnown() && arg.IsNull():
			return nil, false, bad("Incorrect value type", "Element %d of %q must be a string", i+1, name)
		case !arg.IsKnown():
		case i == 0 && arg.AsString() == "":
			return nil, false, bad("Empty command", "The first element of %q, the program to run, is empty", name)
		case strings.ContainsRune(arg.AsString(), 0):
			return nil, false, bad("Invalid argument", "Element %d of %q has a NUL byte", i+1, name)
		default:
			args = append(args, arg.AsString())
		}
	}
	return args, len(args) == v.LengthInt(), nil
}

// text is what the settings say at the range, in one line.
func (s *Settings) text(r hcl.Range) string {
	f := s.Sources[r.Filename]
	if f == nil || !r.CanSliceBytes(f.Bytes) {
		return ""
	}
	return strings.Join(strings.Fields(string(r.SliceBytes(f.Bytes))), " ")
}

// env reads the environment of a command, over that of the agent block. It also returns
// the variables of this block alone.
func (s *Settings) env(b *decoder) (command.Env, map[string]string) {
	env := b.textMap("env,optional", `is:"map of strings" doc:"Environment variables: NAME = \"value\". The variables of the agent block are for all commands; the variables of the command's block override them."`)
	pass := b.list("pass_env,optional", `is:"list of strings" doc:"Variables of the agent's own environment that are passed on: names, and globs such as \"APP_*\". By default only PATH, HOME and LANG are."`)
	e := command.Env{Set: env, Pass: pass}
	for _, name := range sortedKeys(e.Set) {
		err := checkVariable(name)
		if err == nil && strings.ContainsRune(e.Set[name], 0) {
			err = fmt.Errorf("the value of %s has a NUL byte", name)
		}
		if err != nil {
			s.errorAt(b.place("env"), "Invalid environment variable", "%s", sentence(err.Error()))
		}
	}
	for _, glob := range e.Pass {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || strings.ContainsAny(glob, "=\x00") {
			s.errorAt(b.place("pass_env"), "Invalid environment variable", "%q is not the name of an environment variable, nor a glob such as \"APP_*\".", glob)
		}
	}
	return e.Over(s.Config.Env), env
}

func checkVariable(name string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return fmt.Errorf("%q is not the name of an environment variable", name)
	case strings.HasPrefix(name, "ZKAGENT_"):
		return fmt.Errorf("the agent sets %s itself: take another name", name)
	}
	return nil
}

// What comes from ZooKeeper (each.*), and what derives from it (staged, destination),
// carries a mark with its name, which HCL hands on through every function and template.
// Otherwise the writer of a znode could run commands on every host. A rule of form says
// where such data may stand in a command:
//
//   - as a whole argument behind "--"
//   - behind a constant beginning that is no option, as in "app@${each.key}", with no
//     option before it
//
// and never as the program, behind an option that takes a script (-c, -e, --eval and
// their like), or beside a program whose arguments are programs. The list of those is
// short, and a best effort. The path of a file (staged, destination) may stand anywhere
// but in a script.

// foreignMark names the variable that a value comes from.
type foreignMark string

// plainCommand removes the marks of an argument list. The error names data that stands
// where the rule does not allow it.
func plainCommand(v cty.Value) (cty.Value, error) {
	plain, _ := v.UnmarkDeep()
	list, whole := v.Unmark()
	if !plain.IsKnown() || plain.IsNull() || !plain.CanIterateElements() {
		return plain, nil // Looked at again when it runs.
	}
	var args []element
	for _, e := range list.AsValueSlice() {
		e, own := e.UnmarkDeep()
		a := element{from: madeOf(own, whole)}
		switch {
		case e.Type() != cty.String || e.IsKnown() && e.IsNull():
		case e.IsKnown():
			a.text, a.known = e.AsString(), true
		default:
			a.text = e.Range().StringPrefix()
		}
		if err := allowed(args, a); err != nil {
			return plain, err
		}
		args = append(args, a)
	}
	return plain, nil
}

// madeOf names the variable that marks are of; of several, each: its rule is the strictest.
func madeOf(marks ...cty.ValueMarks) string {
	var names []string
	for _, set := range marks {
		for mark := range set {
			if name, ok := mark.(foreignMark); ok {
				names = append(names, string(name))
			}
		}
	}
	switch {
	case len(names) == 0:
		return ""
	case slices.Contains(names, "each"):
		return "each"
	}
	return slices.Min(names)
}

// element is an element of a command: its text, or how it begins when it is not
// known yet, and the variable that it comes from.
type element struct {
	text  string
	known bool
	from  string
}

func (e element) isOption() bool {
	return e.from == "" && (strings.HasPrefix(e.text, "-") || strings.HasPrefix(e.text, "+"))
}

// takesScript reports whether a script follows the element.
func (e element) takesScript() bool { return e.isOption() && scriptOption.MatchString(e.text) }

var scriptOption = regexp.MustCompile(`^[-+][A-Za-z0-9]*[ceES][A-Za-z0-9]*$|^--.*(eval|command|expr|exec|script|code|split-string)`)

// interpreters are programs that run a script, or a file of one.
var interpreters = strings.Fields("sh bash dash zsh ksh ash mksh fish csh tcsh yash rbash pwsh python pypy perl ruby node nodejs php lua tclsh expect Rscript")

// runners are programs whose arguments are programs, scripts, or commands.
var runners = strings.Fields(`env nice ionice chrt nohup setsid timeout stdbuf sudo doas su runuser setpriv chroot unshare nsenter flock
	xargs watch parallel ssh rsh strace ltrace gdb busybox toybox socat ncat find awk gawk mawk nawk sed ed vi vim nvim ex emacs make
	systemd-run start-stop-daemon docker podman kubectl deno bun npx time taskset prlimit setarch pkexec bwrap tmux screen script sqlite`)

// isAmong reports whether an element is one of the programs, in any directory and
// version.
func (e element) isAmong(programs []string) bool {
	return e.from == "" && slices.Contains(programs, strings.TrimRight(path.Base(e.text), "-.0123456789"))
}

// allowed returns an error for data that must not follow the elements before it.
func allowed(before []element, e element) error {
	switch {
	case e.from == "":
		return nil
	case e.from != "each":
		// The path of a file is absolute, and what comes from ZooKeeper in it are names, so it
		// can be no option; but it has no place in a script.
		runs := slices.ContainsFunc(before, func(b element) bool { return b.isAmong(interpreters) || b.isAmong(runners) })
		if !e.known && strings.ContainsAny(e.text, " \t\n") || runs && before[len(before)-1].takesScript() {
			return fmt.Errorf(`%s is data and would be a part of a script; pass it as an argument: ["sh", "-c", "... \"$1\"", "sh", %s]`, e.from, e.from)
		}
		return nil
	case len(before) == 0:
		return errors.New("each is data from ZooKeeper and cannot name the program to run: name the program, and pass each as an argument")
	}
	if i := slices.IndexFunc(before, func(b element) bool { return b.isAmong(runners) }); i >= 0 {
		return fmt.Errorf("each is data, and %s runs its arguments: call your own program, and pass each to it after \"--\"", before[i].text)
	}
	if end := slices.IndexFunc(before, func(b element) bool { return b.from == "" && b.text == "--" }); end >= 0 && hasScript(before[:end]) {
		return nil
	}
	option := func(b element) bool { return b.isOption() || b.isAmong(interpreters) }
	if e.text != "" && !strings.HasPrefix(e.text, "-") && !strings.HasPrefix(e.text, "+") && !slices.ContainsFunc(before, option) {
		return nil
	}
	return errors.New("each is data and could be an option or a part of a script here; pass it as a whole argument behind \"--\", " +
		`as in ["sh", "-c", "... \"$1\"", "--", each.key], or behind a constant beginning, as in ["systemctl", "reload", "app@${each.key}"]`)
}

// hasScript reports whether what follows the elements is no script: each option that
// takes a script has one, and an interpreter has its script or the file of one.
func hasScript(args []element) bool {
	script, interpreter := false, -1
	for i, a := range args {
		if a.takesScript() {
			if i+1 == len(args) || args[i+1].isOption() {
				return false
			}
			script = true
		}
		if a.isAmong(interpreters) {
			interpreter = i
		}
	}
	return script || interpreter < 0 || interpreter+1 < len(args) && !args[interpreter+1].isOption()
}
