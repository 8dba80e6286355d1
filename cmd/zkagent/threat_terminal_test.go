package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// pwn is what an attacker writes wherever ZooKeeper takes it: it sets the title of
// a terminal, clears the screen, and turns the direction of the text.
const pwn = "\x1b[2J\x1b]0;pwn\x07\r\u009b31mPl4nted\u202e"

// pwnJSON is pwn in a string of JSON.
const pwnJSON = `\u001b[2J\u001b]0;pwn\u0007\r\u009b31mPl4nted\u202e`

// obeyed returns what a terminal would obey in a text without colors.
func obeyed(text string) string {
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return fmt.Sprintf("%U", r)
		}
	}
	return ""
}

// TestThreat_Terminal: somebody who writes znodes puts escape sequences into each
// text that a command shows. No command hands one to a terminal.
func TestThreat_Terminal(t *testing.T) {
	t.Parallel()
	addr, s := inMemory(t)
	dir := t.TempDir()
	site := filepath.Join(dir, "site")
	for name, text := range map[string]string{"site/key": "first\n", "second/key": pwn + "\n", "second/other": pwn} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := filepath.Join(dir, "z.hcl")
	text := fmt.Sprintf(`zookeeper { servers = [%q] }
admin { socket = %q }
config "site" { path = "/config/site" }
group "web" { path = "/services/web" }
template "t" {
  contents    = "{{ range members \"web\" }}{{ .ID }} {{ .Labels.zone }}{{ end }}{{ key \"site/key\" }}"
  destination = %q
}
`, addr, filepath.Join(dir, "none"), filepath.Join(dir, "out"))
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "Pl4nted\u202e\u00a0x" // ZooKeeper takes no control characters in names
	znodes := map[string]string{
		"/services/web/good":    `{"host":"10.0.0.1","port":80,"labels":{"zone":"` + pwnJSON + `"}}`,
		"/services/web/bad":     `{"host":"` + pwnJSON + `","port":80}`,
		"/services/web/worse":   pwn,
		"/services/web/" + name: `{"host":"10.0.0.2","port":80}`,
		"/raw":                  pwn,
		"/raw/" + name:          pwn,
		"/zkagent/locks/l/_c_11111111-1111-1111-1111-111111111111-lock-0000000001":      pwn,
		"/zkagent/elections/e/_c_11111111-1111-1111-1111-111111111111-latch-0000000001": pwn,
		fleet.AgentPath("host"): `{"version":"` + pwnJSON + `","health":"failing","since":"2026-01-02T03:04:05Z","faults":[{"code":"` + pwnJSON + `","subject":"` + pwnJSON + `","text":"` + pwnJSON + `"}],"files":{"` + pwnJSON + `":"failed"}}`,
	}
	for _, path := range slices.Sorted(maps.Keys(znodes)) { // parents first
		data := znodes[path]
		kind := session.Persistent
		if strings.HasPrefix(path, "/zkagent/") {
			kind = session.Ephemeral
		}
		err := s.CreateParents(t.Context(), path)
		if err == nil {
			_, _, err = s.Create(t.Context(), path, []byte(data), kind)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	env := []string{"ZKAGENT_ZK=" + addr, "NO_COLOR=1"}
	for _, args := range [][]string{
		{"config", "publish", site, "/config/site", "--yes", "-m", pwn},
		{"config", "publish", filepath.Join(dir, "second"), "/config/site", "--yes", "-m", pwn},
		{"queue", "put", "q", pwn},
		{"queue", "put", "q", pwn},
	} {
		cmd := exec.Command("zkagent", args...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	planted := 0
	for _, args := range []string{
		"zk get /raw", "zk ls /raw", "zk tree /", "zk stat /raw", "zk acl /raw", "zk export /", "zk get /raw/nope", "zk rm /raw --yes", "zk get /raw -o yaml",
		"watch /raw", "watch /raw --children", "watch / --recursive",
		"members /services/web", "members /services/web -o wide", "members /services/web -o json",
		"config get /config/site key", "config get /config/site", "config get /config/site -o json", "config get /config/site --keys",
		"config history /config/site", "config history /config/site -p", "config history /config/site -o json",
		"config diff /config/site", "config plan " + site + " /config/site", "config rollback /config/site --yes",
		"lock --list l", "lock --list l -o json", "lock -n l -- true", "elect --list e", "elect --observe --once e",
		"queue ls q", "queue peek q", "queue take q",
		"fleet", "fleet -o wide", "fleet -o json", "fleet /config/site", "fleet --services",
		"rollout list /config/site", "rollout status /config/site",
		"render -c " + settings, "render -c " + settings + " --dry-run", "doctor -c " + settings,
	} {
		x := onTerminal(t, 200, env, strings.Fields(args)...)
		if strings.HasPrefix(args, "watch") {
			x.await("Pl4nted")
			_ = x.cmd.Process.Kill()
		}
		out := x.whole()
		if bad := obeyed(out); bad != "" {
			t.Errorf("zkagent %s hands %s to the terminal:\n%q", args, bad, out)
		}
		if strings.Contains(out, "Pl4nted") {
			planted++
		}
	}
	if planted < 25 {
		t.Errorf("only %d commands show what was planted", planted)
	}
}

// whole waits for the end, whatever the exit code, and returns all that was shown.
func (x *terminal) whole() string {
	timer := time.AfterFunc(limit, func() { _ = x.cmd.Process.Kill() })
	defer timer.Stop()
	_ = x.cmd.Wait()
	x.read.Wait()
	out, _, _ := x.shown()
	return out
}
