package settings

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
)

// What comes from ZooKeeper (each.*), and what is made of it (staged,
// destination), never stands in the script of a shell: the writer of a znode
// could then run commands on every host. Each such value carries a mark with
// its name, which HCL hands on through every function and template. A marked
// element may be any argument but a script. Pass it as one: $1 in quotes.

// foreignMark names the variable that a value was made of.
type foreignMark string

func foreign(name string, v cty.Value) cty.Value { return v.Mark(foreignMark(name)) }

// plainCommand removes the marks of an argument list. The error names a marked
// element that would be run as a program or a script.
func plainCommand(v cty.Value) (cty.Value, error) {
	plain, marks := v.UnmarkDeepWithPaths()
	whole, of := "", map[int]string{}
	for _, m := range marks {
		for mark := range m.Marks {
			name, ok := mark.(foreignMark)
			if !ok {
				continue
			}
			if len(m.Path) == 0 {
				whole = string(name)
				continue
			}
			if step, ok := m.Path[0].(cty.IndexStep); ok && step.Key.Type() == cty.Number {
				n, _ := step.Key.AsBigFloat().Int64()
				of[int(n)] = string(name)
			}
		}
	}
	if !plain.IsKnown() || plain.IsNull() || !plain.CanIterateElements() {
		return plain, nil // Looked at again when it runs.
	}
	args := make([]argument, 0, plain.LengthInt())
	for i, e := range plain.AsValueSlice() {
		a := argument{from: whole}
		if name := of[i]; name != "" {
			a.from = name
		}
		switch {
		case e.Type() != cty.String || e.IsKnown() && e.IsNull():
		case e.IsKnown():
			a.text = e.AsString()
		default:
			a.text = e.Range().StringPrefix()
		}
		args = append(args, a)
	}
	return plain, scripted(args)
}

// argument is an element of a command: its text, or how it begins when it is not
// known yet, and the variable that it was made of.
type argument struct{ text, from string }

// interpreters are programs that run an argument as a script, with the short
// options that the script follows.
var interpreters = map[string]string{
	"sh": "c", "bash": "c", "dash": "c", "zsh": "c", "ksh": "c", "ash": "c", "mksh": "c", "fish": "c", "csh": "c", "tcsh": "c",
	"su": "c", "runuser": "c", "python": "c", "python3": "c", "perl": "eE", "ruby": "e", "node": "ep", "php": "r",
	"env": "S",
}

// withValue are options of shells that take the next argument.
var withValue = []string{"-o", "+o", "-O", "+O", "--rcfile", "--init-file"}

// scripted returns an error for a marked argument that would be run: the
// program, or the script of an interpreter, also of one that another program
// (env, nice, timeout, sudo) starts.
func scripted(args []argument) error {
	if len(args) > 0 && args[0].from == "each" {
		return errors.New("each is data from ZooKeeper and cannot name the program to run: name the program, and pass each as an argument")
	}
	for i, a := range args {
		name := path.Base(a.text)
		options := interpreters[name]
		if options == "" || a.from != "" {
			continue
		}
		if from := inScript(args[i+1:], options, name == "su" || name == "runuser"); from != "" {
			return inScriptError(name, from)
		}
		if name != "env" {
			return nil // What follows the script are its arguments.
		}
	}
	return nil
}

func inScriptError(name, from string) error {
	shown := from
	if from == "each" {
		shown = "each.key"
	}
	return fmt.Errorf(`%s is data and would be run as a part of the script of %s; pass it as an argument: command = [%q, "-c", "... \"$1\"", %q, %s]`,
		from, name, name, name, shown)
}

// inScript returns the variable that stands in the script of an interpreter
// with these arguments; empty: none. mixed: options follow other arguments.
func inScript(args []argument, options string, mixed bool) string {
	script, skip := false, false
	for _, a := range args {
		isOption := len(a.text) > 1 && (a.text[0] == '-' || a.text[0] == '+')
		switch {
		case skip:
			skip = false
		case a.from != "" && (script || a.text == "" || isOption):
			return a.from // The script, or what could be an option as well.
		case script && !isOption:
			return ""
		case isOption && strings.HasPrefix(a.text, "--"):
			if name, value, ok := strings.Cut(a.text, "="); ok && value == "" || name == "--command" || name == "--eval" || name == "--split-string" {
				script = true
			}
		case isOption && slices.Contains(withValue, a.text):
			skip = true
		case isOption && strings.ContainsAny(a.text[1:], options):
			script = true
		case isOption || mixed || strings.Contains(a.text, "="): // Another option, or a variable of env.
		default:
			return "" // The script was found, or a file: the rest are its arguments.
		}
		if script && a.from != "" {
			return a.from
		}
	}
	return ""
}
