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
	"rbash": "c", "yash": "c", "pwsh": "c", "su": "c", "runuser": "c",
	"python": "c", "perl": "eE", "ruby": "e", "node": "ep", "php": "r", "lua": "e", "tclsh": "c", "expect": "c", "env": "S",
}

// joiners are programs that make one command line for a shell of all their arguments.
var joiners = []string{"ssh", "rsh", "watch", "parallel"}

// wrappers start another program, or a shell with the script that follows -c.
var wrappers = []string{"flock", "script"}

// filters are programs whose first argument is a script, and may start commands.
var filters = []string{"awk", "gawk", "mawk", "nawk", "sed"}

// programName is the name of a program without its directory and its version.
func programName(text string) string { return strings.TrimRight(path.Base(text), "-.0123456789") }

// mixed are interpreters whose options may follow other arguments.
var mixed = []string{"su", "runuser"}

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
		if a.from != "" {
			continue
		}
		name := programName(a.text)
		options, rest := interpreters[name], args[i+1:]
		switch {
		case slices.Contains(joiners, name):
			if k := slices.IndexFunc(rest, func(a argument) bool { return a.from != "" }); k >= 0 {
				return fmt.Errorf("%s is data, and %s runs all of its arguments by a shell: call a script of your own, and let that quote it", rest[k].from, name)
			}
			return nil
		case slices.Contains(filters, name):
			if from := inFilter(rest); from != "" {
				return fmt.Errorf("%s is data and would be a part of the script of %s; pass it as a variable or on the standard input", from, name)
			}
			return nil
		case slices.Contains(wrappers, name):
			for k, a := range rest[:max(len(rest)-1, 0)] {
				if (a.text == "--command" || len(a.text) < 4 && strings.HasPrefix(a.text, "-") && strings.HasSuffix(a.text, "c")) && rest[k+1].from != "" {
					return inScriptError(name, rest[k+1].from)
				}
			}
			continue
		case options == "":
			continue
		}
		if from := inScript(rest, options, slices.Contains(mixed, name)); from != "" {
			return inScriptError(name, from)
		}
		if name != "env" {
			return nil // What follows the script are its arguments.
		}
	}
	return nil
}

// inFilter returns the variable that stands in the script of a filter with these
// arguments; empty: none.
func inFilter(args []argument) string {
	for i := 0; i < len(args); i++ {
		switch text := args[i].text; {
		case text == "-v" || text == "-F":
			i++
		case text == "-e" && i+1 < len(args):
			return args[i+1].from
		case !strings.HasPrefix(text, "-"):
			return args[i].from
		case text == "-f":
			return ""
		}
	}
	return ""
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
