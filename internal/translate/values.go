package translate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// blocks are the blocks of one name in decoded settings.
func blocks(v any) []map[string]any {
	switch b := v.(type) {
	case map[string]any:
		return []map[string]any{b}
	case []map[string]any:
		return b
	case []any:
		var list []map[string]any
		for _, x := range b {
			list = append(list, blocks(x)...)
		}
		return list
	}
	return nil
}

// first is the last block of that name, which wins; nil without one.
func first(v any) map[string]any {
	if l := blocks(v); len(l) > 0 {
		return l[len(l)-1]
	}
	return nil
}

func sorted(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// keys goes through the keys of decoded settings that are not among the known ones: some
// have a note, in which VALUE stands for the value; the others are missed.
func (n *notes) keys(m map[string]any, missed string, remarks map[string]string, known ...string) {
	for _, key := range sorted(m) {
		switch remark := remarks[key]; {
		case slices.Contains(known, key):
		case remark != "":
			n.note("%s", strings.ReplaceAll(remark, "VALUE", text(m[key])))
		default:
			n.miss("%s%s", key, strings.ReplaceAll(missed, "VALUE", fmt.Sprint(m[key])))
		}
	}
}

// text is a value as a text; empty for none.
func text(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		return x
	case []any, map[string]any, []map[string]any:
		return ""
	}
	return fmt.Sprint(v)
}

func texts(v any) []string {
	var list []string
	l, _ := v.([]any)
	for _, x := range l {
		list = append(list, text(x))
	}
	return list
}

// wait is a wait block, or its form "min:max".
func wait(v any) (string, string) {
	if s := text(v); s != "" {
		low, high, _ := strings.Cut(s, ":")
		return low, longest(low, high)
	}
	m := first(v)
	if m == nil || text(m["enabled"]) == "false" {
		return "", ""
	}
	return text(m["min"]), longest(text(m["min"]), text(m["max"]))
}

// longest is the longest wait of consul-template: where it is not set, four times the
// shortest.
func longest(low, high string) string {
	if d, err := time.ParseDuration(low); err == nil && d > 0 && high == "" {
		return (4 * d).String()
	}
	return high
}

// seconds is a number of seconds as a duration; a duration stays.
func seconds(v any) string {
	s := text(v)
	if n, err := strconv.ParseFloat(s, 64); err == nil && n != 0 {
		return s + "s"
	}
	return s
}

func quoteGo(s string) string { return strconv.Quote(s) }

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
