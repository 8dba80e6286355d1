package translate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// shellChars need a shell.
const shellChars = "|&;<>()$`\\\"'*?[]#~%!{}\n"

// place is a word of a command that stands for a path. A shell gets it quoted.
var (
	place       = regexp.MustCompile(`\{\{ ?\.(src|dest) ?\}\}`)
	quotedPlace = regexp.MustCompile(`'\{\{\.(?:src|dest)\}\}'|"\{\{\.(?:src|dest)\}\}"|\{\{\.(?:src|dest)\}\}`)
)

// command translates a command line into the arguments of a command, as HCL
// expressions. Words such as {{.src}} stand for expressions of ours.
func command(text string, words map[string]string) []string {
	text = place.ReplaceAllString(strings.TrimSpace(text), "{{.$1}}")
	if text == "" {
		return nil
	}
	var args []string
	if word, _, _ := strings.Cut(text, " "); !strings.ContainsAny(place.ReplaceAllString(text, ""), shellChars) && !strings.Contains(word, "=") {
		for f := range strings.FieldsSeq(text) {
			args = append(args, interpolated(f, words))
		}
		return args
	}
	// A shell gets the paths as parameters: they are never parsed by it.
	script := quotedPlace.ReplaceAllStringFunc(text, func(of string) string {
		path := words[place.FindStringSubmatch(of)[1]]
		if !slices.Contains(args, path) {
			args = append(args, path)
		}
		return fmt.Sprintf(`"$%d"`, slices.Index(args, path)+1)
	})
	if len(args) > 0 {
		args = slices.Insert(args, 0, quote("sh"))
	}
	return append([]string{quote("/bin/sh"), quote("-c"), quote(script)}, args...)
}

// interpolated is one argument in which places stand for expressions.
func interpolated(word string, words map[string]string) string {
	if m := place.FindStringSubmatch(word); m != nil && m[0] == word {
		return words[m[1]]
	}
	return place.ReplaceAllStringFunc(quote(word), func(of string) string { return "${" + words[place.FindStringSubmatch(of)[1]] + "}" })
}
