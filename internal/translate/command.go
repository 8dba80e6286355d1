package translate

import (
	"strconv"
	"strings"
)

// shellChars need a shell.
const shellChars = "|&;<>()$`\\\"'*?[]#~%!{}\n"

// command translates a command line into the arguments of a command, as HCL
// expressions. Words such as {{.src}} stand for expressions of ours.
func command(text string, words map[string]string) []string {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	marked, params := text, []string{}
	for _, word := range []string{"src", "dest"} {
		for _, spelled := range []string{"{{." + word + "}}", "{{ ." + word + " }}", "{{ ." + word + "}}", "{{." + word + " }}"} {
			if strings.Contains(marked, spelled) {
				marked = strings.ReplaceAll(marked, spelled, "\x00"+word+"\x00")
				params = append(params, word)
			}
		}
	}
	if word, _, _ := strings.Cut(marked, " "); !strings.ContainsAny(marked, shellChars) && !strings.Contains(word, "=") {
		var args []string
		for f := range strings.FieldsSeq(marked) {
			args = append(args, interpolated(f, words))
		}
		return args
	}
	// A shell gets the paths as parameters: they are never parsed by it.
	args := []string{quote("/bin/sh"), quote("-c")}
	var values []string
	for _, p := range params {
		if strings.Contains(marked, "\x00"+p+"\x00") {
			values = append(values, words[p])
			ref := "\"$" + strconv.Itoa(len(values)) + "\""
			for _, q := range []string{"'", "\"", ""} {
				marked = strings.ReplaceAll(marked, q+"\x00"+p+"\x00"+q, ref)
			}
		}
	}
	args = append(args, quote(marked))
	if len(values) > 0 {
		args = append(append(args, quote("sh")), values...)
	}
	return args
}

// interpolated is one argument in which marks stand for expressions.
func interpolated(word string, words map[string]string) string {
	for name, expr := range words {
		if word == "\x00"+name+"\x00" {
			return expr
		}
	}
	s := quote(word)
	for name, expr := range words {
		s = strings.ReplaceAll(s, "\x00"+name+"\x00", "${"+expr+"}")
	}
	return s
}
