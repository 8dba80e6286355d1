package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// everyCommand calls fn with each command that does something.
func everyCommand(t *testing.T, fn func(*cobra.Command)) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.Annotations["parent"] == "" && c.Name() != "help" {
			fn(c)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(newGlobals(nil, nil, nil)))
}

// TestHelp_Examples: every command shows examples, each of the command itself, with
// flags and arguments that it takes.
func TestHelp_Examples(t *testing.T) {
	everyCommand(t, func(c *cobra.Command) {
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			own := false
			for _, part := range regexp.MustCompile(`[|>]`).Split(line, -1) {
				if words := shellWords(t, part); len(words) > 0 && words[0] == "zkagent" {
					own = own || strings.HasPrefix(fits(t, words), c.CommandPath())
				}
			}
			if !own && strings.TrimSpace(line) != "" {
				t.Errorf("the help of %s has the example %q", c.CommandPath(), line)
			}
		}
	})
	for path := range examples {
		if find(newRoot(newGlobals(nil, nil, nil)), path) == nil {
			t.Errorf("there are examples of %q, which is no command", path)
		}
	}
}

// fits parses a command line as far as it goes without running it, and returns
// which command it is.
func fits(t *testing.T, words []string) string {
	t.Helper()
	root := newRoot(newGlobals(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}))
	c, rest, err := root.Find(words[1:])
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err == nil {
		err = c.ValidateRequiredFlags()
	}
	if err != nil {
		t.Errorf("%q: %v", words, err)
		return ""
	}
	return c.CommandPath()
}

// shellWords are the words of a command line, with simple quotes.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	for _, m := range regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(m, `"'`))
	}
	return words
}

// TestHelp_CommonFlags: no help but that of options shows the flags of all commands.
func TestHelp_CommonFlags(t *testing.T) {
	everyCommand(t, func(c *cobra.Command) {
		shows := strings.Contains(c.UsageString(), "--session-timeout")
		if shows {
			t.Errorf("the help of %s shows the flags of all commands", c.CommandPath())
		}
	})
	var out, talk bytes.Buffer
	if code := run([]string{"options"}, strings.NewReader(""), &out, &talk); code != 0 || !strings.Contains(out.String(), "--session-timeout") {
		t.Errorf("options: %d %s%s", code, &out, &talk)
	}
}

// TestHelp_Suggestions: what is nearly a command or a flag is named.
func TestHelp_Suggestions(t *testing.T) {
	for line, want := range map[string]string{
		"statsu":                    `did you mean "status"?`,
		"rollout stauts site":       `did you mean "status"?`,
		"zk lss /":                  `did you mean "ls"?`,
		"config publish --rolout":   `did you mean "--rollout"?`,
		"status --ouptut json":      `did you mean "--output"?`,
		"members --no-header":       `did you mean "--no-headers"?`,
		"top":                       "zkagent has no command \"top\"\n", // no command is near it
		"stats":                     `did you mean "status"?`,
		"status --something-else":   "zkagent status has no flag --something-else\n",
		"lock --permit 2 a -- true": `did you mean "--permits"?`,
	} {
		var out, talk bytes.Buffer
		if code := run(strings.Fields(line), strings.NewReader(""), &out, &talk); code != exitUsage || !strings.Contains(talk.String(), want) {
			t.Errorf("%s: exit code %d, %swant %s", line, code, &talk, want)
		}
	}
}

// TestHelp_OurWords: an error of usage names the command or flag, and the next step.
func TestHelp_OurWords(t *testing.T) {
	for line, want := range map[string]string{
		"rollout history":                     "error: zkagent rollout history takes 1 argument, but got 0\nhint: zkagent rollout list NAME|PATH",
		"config publish":                      "error: zkagent config publish takes 2 arguments, but got 0\n",
		"zk ls / b c":                         "error: zkagent zk ls takes at most 1 argument, but got 3\n",
		"lock":                                "error: zkagent lock needs at least 1 argument, but got 0\n",
		"status --timeout zz":                 "error: --timeout: \"zz\" is not a duration, such as 500ms, 10s or 5m\n",
		"status --timeout 5":                  "error: --timeout: \"5\" is not a duration, such as 500ms, 10s or 5m\n",
		"barrier enter x --count two -- true": "error: --count: \"two\" is not a whole number\n",
		"barrier enter x --count 9999999999999999999 -- true": "error: --count: \"9999999999999999999\" is too large\n",
		"status --watch=2":             "error: --watch: \"2\" is neither true nor false\n",
		"zk ls / --zk 127.0.0.1:99999": "hint: zkagent zk ls [PATH]; see \"zkagent zk ls --help\"\n",
		"zk ls -x /":                   "error: zkagent zk ls has no flag -x\n",
		"lock -nx a -- true":           "error: zkagent lock has no flag -x\n",
		"lock a -w soon -- true":       "error: --wait: \"soon\" is not a number of seconds and not a duration\n",
		"test --run":                   "error: --run needs a value\n",
		"test -o":                      "error: -o needs a value\n",
		"config foo":                   "hint: see \"zkagent config --help\"\n",
		"barrier enter x":              "hint: zkagent barrier enter NAME --count N",
	} {
		var out, talk bytes.Buffer
		code := run(strings.Fields(line), strings.NewReader(""), &out, &talk)
		if code != exitUsage || !strings.Contains(talk.String(), want) || !strings.Contains(talk.String(), "hint: ") {
			t.Errorf("%s: exit code %d, %swant %s", line, code, &talk, want)
		}
	}
}

// TestHelp_RolloutFlags: one help explains the flags of rollouts, and the others name it.
func TestHelp_RolloutFlags(t *testing.T) {
	for line, full := range map[string]bool{"config publish": true, "config rollback": false, "config plan": false} {
		var out, talk bytes.Buffer
		run(append(strings.Fields(line), "--help"), strings.NewReader(""), &out, &talk)
		if strings.Contains(out.String(), "--canary string") != full || strings.Contains(out.String(), rolloutHelp) == full {
			t.Errorf("%s --help:\n%s%s", line, &out, &talk)
		}
	}
}

// TestDocs_NameCommands: every command that the text of a page names is one, with flags
// that it has. The tests of docs run the commands of blocks.
func TestDocs_NameCommands(t *testing.T) {
	named := regexp.MustCompile("(?:\\\\\"|`)zkagent ((?:--)?[a-z][^\"`\\\\\n]*)")
	found := 0
	for _, pattern := range []string{"../../docs/*.md", "../../README.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range named.FindAllStringSubmatch(string(data), -1) {
				if strings.HasPrefix(m[1], "help") || strings.HasPrefix(m[1], "--help") || strings.HasPrefix(m[1], "registers the services") {
					continue // cobra's own, and how the help begins
				}
				found++
				line, _, _ := strings.Cut(m[1], " -- ")
				words := strings.Fields(line)
				c, rest, err := newRoot(newGlobals(nil, nil, nil)).Find(words)
				if err != nil || !c.HasParent() || c.Annotations["parent"] != "" && len(rest) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(rest[0]) {
					t.Errorf("%s names %q, which is no command", name, m[1])
					continue
				}
				for _, word := range rest {
					flag, long := strings.CutPrefix(strings.TrimRight(word, ".,;:)]"), "--")
					flag, _, _ = strings.Cut(flag, "=")
					if long && flag != "" && c.Flags().Lookup(flag) == nil && c.InheritedFlags().Lookup(flag) == nil {
						t.Errorf("%s names %q: %s has no flag --%s", name, m[1], c.CommandPath(), flag)
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands", found)
	}
}
