package settings

import (
	"fmt"
	"os"
	"path"
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

// unknown returns the variables without values, for the check on load.
func (v vars) unknown() map[string]cty.Value {
	m := map[string]cty.Value{}
	if v.staged {
		for _, name := range []string{"staged", "staged_dir", "destination"} {
			m[name] = foreign(name, cty.UnknownVal(cty.String))
		}
	}
	if v.each {
		m["each"] = foreign("each", cty.ObjectVal(map[string]cty.Value{"key": cty.UnknownVal(cty.String), "value": cty.DynamicVal}))
	}
	return m
}

// known returns the variables with the values of one run.
func (v vars) known(now command.Vars) map[string]cty.Value {
	m := map[string]cty.Value{}
	if v.staged {
		m["staged"] = foreign("staged", cty.StringVal(now.Staged))
		m["staged_dir"] = cty.StringVal(now.StagedDir)
		m["destination"] = foreign("destination", cty.StringVal(now.Destination))
	}
	if v.each && now.Each != nil {
		m["each"] = foreign("each", eachValue(now.Each))
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
	got, diags := s.evaluate(e, s.context(file, v.unknown()))
	if diags.HasErrors() || !s.commandShape(e.written, got) {
		return command.Command{}
	}
	base := s.context(file, nil)
	return command.Command{Text: s.text(e.At), Args: func(now command.Vars) ([]string, error) {
		return arguments(e, &hcl.EvalContext{Functions: base.Functions, Variables: v.known(now)})
	}}
}

const commandForm = `a list of arguments, as in ["nginx", "-t"]; there is no shell unless you write one: ["sh", "-c", "..."]`

func (s *Settings) commandShape(w written, got cty.Value) bool {
	got, scripted := plainCommand(got)
	if scripted != nil {
		s.errorAt(w.At, "Data in a command", "%s.", scripted)
		return false
	}
	ty := got.Type()
	if ty != cty.DynamicPseudoType && !ty.IsTupleType() && !ty.IsListType() {
		s.errorAt(w.At, "Incorrect value type", "%q must be %s.", w.Name, commandForm)
		return false
	}
	if !got.IsKnown() {
		return true
	}
	if got.LengthInt() == 0 {
		s.errorAt(w.At, "Empty command", "%q must have at least one element: the program to run.", w.Name)
		return false
	}
	for i, e := range got.AsValueSlice() {
		arg, err := convert.Convert(e, cty.String)
		switch {
		case err != nil || arg.IsKnown() && arg.IsNull():
			s.errorAt(w.At, "Incorrect value type", "Element %d of %q must be a string.", i+1, w.Name)
			return false
		case arg.IsKnown() && i == 0 && arg.AsString() == "":
			s.errorAt(w.At, "Empty command", "The first element of %q, the program to run, is empty.", w.Name)
			return false
		case arg.IsKnown() && strings.ContainsRune(arg.AsString(), 0):
			s.errorAt(w.At, "Invalid argument", "Element %d of %q has a NUL byte.", i+1, w.Name)
			return false
		}
	}
	return true
}

func arguments(expr hcl.Expression, ctx *hcl.EvalContext) ([]string, error) {
	v, diags := expr.Value(ctx)
	if diags.HasErrors() {
		return nil, fmt.Errorf("evaluate command: %s", Line(diags[0]))
	}
	v, scripted := plainCommand(v)
	if scripted != nil {
		return nil, fmt.Errorf("evaluate command at %s: %w", place(expr.Range()), scripted)
	}
	if v.IsNull() || !v.IsWhollyKnown() {
		return nil, fmt.Errorf("evaluate command at %s: it has no value", place(expr.Range()))
	}
	list, err := convert.Convert(v, cty.List(cty.String))
	if err != nil {
		return nil, fmt.Errorf("evaluate command at %s: %w", place(expr.Range()), err)
	}
	args := make([]string, 0, list.LengthInt())
	for _, e := range list.AsValueSlice() {
		if e.IsNull() {
			return nil, fmt.Errorf("evaluate command at %s: an element is null", place(expr.Range()))
		}
		args = append(args, e.AsString())
	}
	if len(args) == 0 || args[0] == "" {
		return nil, fmt.Errorf("evaluate command at %s: there is no program to run: %w", place(expr.Range()), os.ErrInvalid)
	}
	return args, nil
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
