package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// askShell are programs for real shells: each sources our script, and prints a line
// for each completion of the command line in $1, which begins with the completion.
var askShell = map[string]string{
	// What bash-completion offers to scripts, as far as ours needs it.
	"bash": `
_get_comp_words_by_ref() { cur=$LASTWORD prev=$BEFORE words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
__ltrim_colon_completions() { :; }
compopt() { :; }
source <(zkagent completion bash)
COMP_LINE="$1" COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_KEY=9
read -ra COMP_WORDS <<<"$COMP_LINE"
case $COMP_LINE in *\ ) COMP_WORDS+=("") ;; esac
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) LASTWORD=${COMP_WORDS[-1]} BEFORE=${COMP_WORDS[-2]}
__start_zkagent
printf '%s\n' "${COMPREPLY[@]}"
`,
	// What the completion system offers to functions: it takes the candidates, here all
	// that begin with the last word.
	"zsh": `
compdef() { :; }
_describe() {
	local -a found=("${(@P)argv[-1]}")
	print -rl -- "${(@)${(M@)found:#$words[-1]*}//:/ }"
}
source <(zkagent completion zsh)
words=(${=1})
[[ $1 == *\  ]] && words+=("")
CURRENT=$#words
_zkagent
`,
	"fish": `
zkagent completion fish | source
complete -C $argv[1]
`,
}

// TestCompletion sources the scripts into real shells, and asks for what comes after
// each line.
func TestCompletion(t *testing.T) {
	t.Parallel()
	server := memzk.New(memzk.Options{})
	t.Cleanup(server.Close)
	addr, err := server.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	known := fleet.KnownPath + "/" + fleet.Shard("web-07")
	for _, path := range []string{"/zkagent", fleet.KnownPath, known, known + "/web-07"} {
		if err := server.Create(path, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	settings := filepath.Join(dir, "zkagent.hcl")
	if err := os.WriteFile(settings, fmt.Appendf(nil, `
zookeeper { servers = ["%s"] }
config "site" { path = "/config/site" }
config "shop" { path = "/config/shop" }
group "api" { path = "/services/api" }
election "nightly" { path = "/elections/nightly" }
template "main" {
  contents    = "x"
  destination = "%s/main"
}
`, addr, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	for shell, program := range askShell {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Fatalf("%v; run scripts/setup-tests, which installs it", err)
			}
			script := filepath.Join(dir, "ask."+shell)
			if err := os.WriteFile(script, []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			for line, want := range map[string][]string{
				"zkagent sta":                 {"status"},
				"zkagent config pub":          {"publish"},
				"zkagent rollout status s":    {"shop", "site"},
				"zkagent config publish . si": {"site"},
				"zkagent members ":            {"accept", "api"},
				"zkagent elect n":             {"nightly"},
				"zkagent render ":             {"main"},
				"zkagent status -o ":          {"json", "ndjson", "text", "wide", "yaml"},
				"zkagent fleet forget ":       {"web-07"},
				"zkagent zk ls --no-h":        {"--no-headers"},
				"zkagent completion ":         {"bash", "fish", "powershell", "zsh"},
			} {
				if testhelp.NotToday(shell+line, 2) {
					continue
				}
				// A completion ends within completeTime: on a busy machine it may find nothing.
				testhelp.Eventually(t, fmt.Sprintf("%q completes to %q", line, want), func() bool {
					cmd := exec.CommandContext(t.Context(), path, script, line)
					cmd.Env = append(os.Environ(), "ZKAGENT_CONFIG="+settings, "HOME="+home, "ZDOTDIR="+home, "XDG_CONFIG_HOME="+home, "TERM=dumb")
					var talk bytes.Buffer
					cmd.Stderr = &talk
					out, err := cmd.Output()
					if err != nil {
						t.Fatalf("%q: %v: %s%s", line, err, out, &talk)
					}
					var got []string
					for l := range strings.Lines(string(out)) {
						got = append(got, strings.Fields(l + " -")[0])
					}
					slices.Sort(got)
					if !slices.Equal(got, want) {
						t.Logf("%q: got %q (%s)", line, got, &talk)
					}
					return slices.Equal(got, want)
				})
			}
		})
	}
}
