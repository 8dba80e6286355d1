package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// TestVerdict_Seeds votes on random versions and applies them: bundles of several files and
// of a file for each key, in directories that are there or not, with a check of every kind
// and moment, while hands edit and remove files. A vote changes nothing. The apply that
// follows it comes to the same verdict, unless the vote said that the check was not run.
func TestVerdict_Seeds(t *testing.T) {
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		newVerdicts(t, seed).play()
	})
}

type verdicts struct {
	*applyBed

	rnd  *rand.Rand
	at   string
	each bool // the bundle has a file for each key
	keys map[string]string
	log  []string
}

func newVerdicts(t *testing.T, seed uint64) *verdicts {
	p := &verdicts{rnd: rand.New(rand.NewPCG(seed, 11)), keys: map[string]string{}}
	p.applyBed = newApplyBed(t)
	p.Options.Run, p.Options.Previews = p.check, func(*CheckConfig) (string, error) { return "in memory", nil } //nolint:staticcheck // Run is a method of applyBed, too
	p.Engine = New(p.Options)
	p.Recover(nil)
	if err := os.Mkdir(p.path("conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// config is a random bundle.
func (p *verdicts) config() Config {
	p.at = []string{atPreview, atPreview, atStaged, atSwapped}[p.rnd.IntN(4)]
	all, web := p.rnd.IntN(2) == 0, view.Source{Kind: view.KindConfig, Name: "web"}
	c := Config{Name: "web", Check: &CheckConfig{At: p.at, Command: command.Command{Text: "check", Args: func(v command.Vars) ([]string, error) {
		switch {
		case !all:
			return []string{"check", v.Staged}, nil
		case p.at == atStaged:
			return []string{"check", v.StagedDir}, nil
		}
		return []string{"check", p.path("conf")}, nil
	}}}}
	file := func(name, contents, dest string) {
		c.Templates = append(c.Templates, FileConfig{
			Name: name, Contents: contents, CreateDirs: strings.Contains(dest, "/"), Destination: func(e *template.Each) (string, error) {
				if e != nil {
					return p.path("conf/" + fmt.Sprintf(dest, e.Key)), nil
				}
				return p.path("conf/" + dest), nil
			},
		})
	}
	if p.rnd.IntN(2) == 0 {
		c.ForEach, p.each = &web, true
		file("each", "{{ .Value }};", []string{"%s.conf", "%s/x.conf", "all/%s/x.conf"}[p.rnd.IntN(3)])
		if p.rnd.IntN(3) == 0 {
			file("more", "{{ .Key }};", "%s.more")
		}
		return c
	}
	file("main", []string{"main;", `{{ keyOrDefault "web/a" "" }};`}[p.rnd.IntN(2)], "main.conf")
	file("b", `{{ keyOrDefault "web/b" "" }};`, []string{"b.conf", "sub/b.conf"}[p.rnd.IntN(2)])
	file("c", `{{ keyOrDefault "web/c" "" }};`, "c.conf")
	return c
}

// check refuses a file, or a directory, with "bad" in it, as a preview shows it.
func (p *verdicts) check(_ context.Context, c proc.Command) (proc.Result, error) {
	seen := tree(c.Args[1])
	if c.Preview != nil {
		for _, f := range c.Preview.Files {
			if f.Path == c.Args[1] || strings.HasPrefix(f.Path, c.Args[1]+"/") {
				seen[f.Path] = string(f.Data)
				if f.Gone {
					delete(seen, f.Path)
				}
			}
		}
	}
	for path, text := range seen {
		if strings.Contains(text, "bad") {
			return proc.Result{Code: 1}, fmt.Errorf("bad: %s", path)
		}
	}
	return proc.Result{}, nil
}

// tree returns the files at and below a path.
func tree(path string) map[string]string {
	found := map[string]string{}
	_ = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.Contains(name, "zkagent-") {
			data, _ := os.ReadFile(name)
			found[name] = string(data)
		}
		return nil
	})
	return found
}

func (p *verdicts) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf(format, args...))
}

func (p *verdicts) play() {
	x := p.bundle(p.config())
	for n := range 20 {
		for range 1 + p.rnd.IntN(3) {
			key := []string{"a", "b", "c", "d"}[p.rnd.IntN(4)]
			switch p.keys[key] = fmt.Sprint("good", n); p.rnd.IntN(6) {
			case 0:
				p.keys[key] = fmt.Sprint("bad", n)
			case 1, 2:
				delete(p.keys, key)
			}
		}
		if p.rnd.IntN(3) == 0 {
			p.edit()
		}
		p.applyBed.keys(maps.Clone(p.keys))
		p.note("%s %v", p.at, p.keys)
		before := tree(p.path("conf"))
		vote := p.Try(p.t.Context(), x.Bundle, p.view)
		if after := tree(p.path("conf")); !maps.Equal(before, after) {
			p.t.Errorf("a vote has changed %v to %v", before, after)
		}
		done := p.apply(x).Err
		p.note("vote %v, apply %v", vote, done)
		if !errors.Is(vote, ErrCheckNotRun) && (vote == nil) != (done == nil) {
			p.t.Errorf("step %d: the vote is %v, the apply %v", n, vote, done)
		}
		if p.t.Failed() {
			p.t.Log(strings.Join(p.log, "\n"))
			return
		}
	}
}

// edit lets a hand write or remove a file.
func (p *verdicts) edit() {
	list := slices.Sorted(maps.Keys(tree(p.path("conf"))))
	if len(list) == 0 {
		return
	}
	path, err := list[p.rnd.IntN(len(list))], error(nil)
	switch text := []string{"", "bad", "odd"}[p.rnd.IntN(3)]; {
	case text == "" || p.each: // An edited file of a key that goes stays, and is not ours when the key comes back.
		err = os.Remove(path)
		p.note("removed %s", path)
	default:
		err = os.WriteFile(path, []byte(text), 0o600)
		p.note("%s: %s", path, text)
	}
	if err != nil {
		p.t.Error(err)
	}
}
