package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// commandLine checks that the program understands a command line that the
// packages have it run.
func commandLine(t *testing.T, where string, args []string) {
	t.Helper()
	var out bytes.Buffer
	c, rest, err := newRoot(newGlobals(strings.NewReader(""), &out, &out)).Find(args)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil || !c.Runnable() {
		t.Errorf("%s: %v is not a command line of ours: %v", where, args, err)
	}
}

func packaging(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "packaging", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPackaging_Unit: the unit runs commands that exist.
func TestPackaging_Unit(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^Exec(\w+)=(.*)$`).FindAllStringSubmatch(packaging(t, "zkagent.service"), -1)
	if len(lines) < 2 {
		t.Fatalf("got %d commands", len(lines))
	}
	for _, l := range lines {
		args := strings.Fields(l[2])
		if args[0] != "/usr/bin/zkagent" {
			t.Errorf("Exec%s runs %s", l[1], args[0])
		}
		commandLine(t, "Exec"+l[1], args[1:])
	}
}

// TestPackaging_Container: what the container file says of this tree holds. No
// image is built: that needs a network and a container engine.
func TestPackaging_Container(t *testing.T) {
	text := packaging(t, "Containerfile")
	find := func(pattern string) []string {
		m := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("nothing like %s", pattern)
		}
		return m
	}
	var entry, cmd []string
	for pattern, into := range map[string]*[]string{`^ENTRYPOINT (\[.*\])$`: &entry, `^CMD (\[.*\])$`: &cmd} {
		if err := json.Unmarshal([]byte(find(pattern)[1]), into); err != nil {
			t.Fatalf("%s is not the exec form: %v", pattern, err)
		}
	}
	commandLine(t, "CMD", append(entry[1:], cmd...))
	if want := find(`^COPY --from=build /out/zkagent (\S+)$`)[1]; entry[0] != want {
		t.Errorf("the entry point is %s, the program is %s", entry[0], want)
	}

	// What is copied from the build has been made there.
	build := find(`(?s)^RUN CGO_ENABLED=0 (.*?)\n\n`)[1]
	for _, m := range regexp.MustCompile(`COPY --from=build (?:--chown=\S+ )?(/out/\S+)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(build, m[1]) {
			t.Errorf("%s is copied and not made", m[1])
		}
	}
	main := regexp.MustCompile(`(\./cmd/\w+)`).FindString(build)
	if _, err := os.Stat(filepath.Join("..", "..", main, "main.go")); err != nil {
		t.Errorf("the program of the image: %v", err)
	}
	if !strings.Contains(build, "-X main.version=") {
		t.Error("the image's program has no version")
	}

	// An unprivileged user by number, who owns what the agent writes.
	id := find(`^USER (\d+:\d+)$`)[1]
	if strings.HasPrefix(id, "0:") {
		t.Errorf("the image runs as %s", id)
	}
	env := find(`^ENV STATE_DIRECTORY=(\S+) RUNTIME_DIRECTORY=(\S+)$`)
	for _, dir := range env[1:] {
		find(`^COPY --from=build --chown=` + id + ` \S+ ` + regexp.QuoteMeta(dir) + `$`)
	}

	// The compiler is as new as the module wants it.
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))[1]
	if got := find(`^FROM \S+golang:(\S+) AS build$`)[1]; got != want {
		t.Errorf("the image is built by Go %s, the module wants %s", got, want)
	}
}
