package apply

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// A vote, a dry run and an apply come to one verdict on the same bytes, whatever the check
// and the files are like: "bad" is refused by all, or the vote says that it has not looked.
func TestVerdict_OneForTheSameBytes(t *testing.T) {
	t.Parallel()
	web := view.Source{Kind: view.KindConfig, Name: "web"}
	each := func(b *applyBed, c *Config, dest string, dirs bool) {
		c.ForEach = &web
		c.Templates[0].Contents = `{{ .Value }};`
		c.Templates[0].CreateDirs = dirs
		c.Templates[0].Destination = func(e *template.Each) (string, error) {
			if e == nil {
				return "", errors.New("there is no element")
			}
			return b.path(fmt.Sprintf(dest, e.Key)), nil
		}
		c.Templates = c.Templates[:1]
	}
	named := command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
		return []string{"/bin/sh", "-c", `! grep -q bad "$1"`, "sh", v.Staged}, nil
	}}
	for name, set := range map[string]func(b *applyBed, c *Config){
		"a bundle":                  func(*applyBed, *Config) {},
		"each":                      func(b *applyBed, c *Config) { each(b, c, "conf/%s", false); c.Check.Command = named },
		"each in a directory to be": func(b *applyBed, c *Config) { each(b, c, "conf/%s/x.conf", true); c.Check.Command = named },
		"each in the end to be": func(b *applyBed, c *Config) {
			each(b, c, "conf/%s/x.conf", true)
			c.Check.Command = named
			if err := os.MkdirAll(b.path("conf/a"), 0o755); err != nil {
				t.Error(err)
			}
		},
		"a check of the first file": func(_ *applyBed, c *Config) {
			c.Templates[0].Contents = "main;" // it never changes
			if c.Check.At == atStaged {
				return
			}
			c.Check.Command = command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
				return []string{"/bin/sh", "-c", `grep -q main "$1" && ! grep -q bad "${1%one.conf}two.conf"`, "sh", v.Staged}, nil
			}}
		},
		"an alias of the directory": func(b *applyBed, c *Config) {
			if err := os.Symlink("conf", b.path("alias")); err != nil {
				t.Error(err)
			}
			c.Templates[1].Destination = func(*template.Each) (string, error) { return b.path("alias/two.conf"), nil }
		},
	} {
		for _, at := range []string{atPreview, atStaged, atSwapped} {
			if testhelp.NotToday(name+at, 2) {
				continue
			}
			t.Run(name+" "+at, func(t *testing.T) {
				t.Parallel()
				b, c := previewing(t)
				c.Check.At = at
				if at == atStaged {
					c.Check.Command = command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
						return []string{"/bin/sh", "-c", `! grep -rq bad "$1"`, "sh", v.StagedDir}, nil
					}}
				}
				set(b, &c)
				x := b.bundle(c)
				b.keys(map[string]string{"v": "good", "a": "good", "w": "good"})
				if err := b.Try(t.Context(), x.Bundle, b.view); err != nil && (at != atSwapped || !errors.Is(err, ErrCheckNotRun)) {
					t.Errorf("a vote on a good version: %v", err)
				}
				if _, err := os.Stat(b.path("conf/v")); err == nil {
					t.Error("the vote has made a directory")
				}
				good := b.view
				b.keys(map[string]string{"v": "bad", "a": "good", "w": "good"})
				want := at != atSwapped
				if err := b.Try(t.Context(), x.Bundle, b.view); err == nil || want == errors.Is(err, ErrCheckNotRun) {
					t.Errorf("a vote on a bad version that is new: %v", err)
				}
				b.view = good
				b.good(x)
				b.keys(map[string]string{"v": "better", "a": "good", "w": "good"})
				b.good(x)
				b.keys(map[string]string{"v": "bad", "a": "good", "w": "good", "z": "good"})
				if err := b.Try(t.Context(), x.Bundle, b.view); err == nil || want == errors.Is(err, ErrCheckNotRun) {
					t.Errorf("a vote on a bad version: %v", err)
				}
				b.bad(x, stageCheck, "")
			})
		}
	}
}

// A vote on a version whose file cannot be rendered now, because a group is empty, has
// not looked at it: the file is rendered when the group has members again.
func TestVerdict_EmptyGroup(t *testing.T) {
	t.Parallel()
	b, c := previewing(t)
	c.Templates = b.file("conf/one.conf", `{{ key "web/v" }}{{ range members "all" }}{{ .Port }};{{ end }}`).Templates
	c.Check.Command = script("! grep -q bad %s", b.path("conf/one.conf"))
	x := Parse(c, []view.Source{{Kind: view.KindConfig, Name: "web"}, {Kind: view.KindGroup, Name: "all"}})
	if x.Err != nil {
		t.Fatal(x.Err)
	}
	b.keys(map[string]string{"v": "bad"})
	b.view = b.view.With(&view.Group{Name: "all", Path: "/all", OnEmpty: registry.OnEmptyKeep})
	if err := b.Try(t.Context(), x, b.view); !errors.Is(err, ErrCheckNotRun) {
		t.Errorf("an empty group: %v", err)
	}
	b.view = b.view.With(&view.Group{Name: "all", Path: "/all", Members: []view.Member{{ID: "m", Name: "m", Host: "10.0.0.1", Port: 80, Status: view.StatusUp}}})
	if err := b.Try(t.Context(), x, b.view); err == nil || errors.Is(err, ErrCheckNotRun) {
		t.Errorf("with a member: %v", err)
	}
}

// A hand has spoiled a file of the bundle that a good version does not change. A vote sees
// the version with all files as the bundle writes them. So does an apply.
func TestVerdict_AnotherFileWasEdited(t *testing.T) {
	t.Parallel()
	for _, at := range []string{atPreview, atSwapped} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			b, c := previewing(t)
			c.Check.At = at
			c.Templates[0].Contents = "main;"
			c.Check.Command = script("echo run >>%s; ! grep -q bad %s/*", b.path("runs"), b.path("conf"))
			x := b.bundle(c)
			b.keys(map[string]string{"v": "good"})
			b.good(x)
			if err := os.WriteFile(b.path("conf/one.conf"), []byte("bad"), 0o600); err != nil {
				t.Fatal(err)
			}
			b.keys(map[string]string{"v": "better"})
			if err := b.Try(t.Context(), x.Bundle, b.view); err != nil && !errors.Is(err, ErrCheckNotRun) {
				t.Errorf("a vote: %v", err)
			}
			b.good(x)
			b.is("conf/one.conf", "main;")
			b.is("conf/two.conf", "two=better;")
			if err := os.Remove(b.path("runs")); err != nil {
				t.Fatal(err)
			}
			b.keys(map[string]string{"v": "bad"})
			b.bad(x, stageCheck, "")
			b.is("runs", "run\n") // There is nothing else to look at.
		})
	}
}
