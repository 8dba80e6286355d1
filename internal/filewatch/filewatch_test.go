package filewatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The watch reports a rename over a file, a new settings file beside it, and a file that
// the settings name only after a change. It ignores other files.
func TestWatch(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	settings, late := filepath.Join(dir, "a.hcl"), filepath.Join(other, "late.tmpl")
	files := []string{settings}
	watched, changed := make(chan string, 10), make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch{
			Files:   func() []string { return files },
			Changed: func() { files = []string{settings, late}; changed <- struct{}{} },
			Problem: func(d string, err error) {
				if err != nil {
					t.Errorf("%s: %v", d, err)
				}
				watched <- d
			},
			Lost: func(err error) { t.Error(err) },
		}.Run(ctx)
	}()
	<-watched
	write(filepath.Join(dir, "stranger.txt"))
	write(settings)
	<-changed
	<-watched // the other directory
	write(late)
	<-changed
	write(filepath.Join(dir, "b.hcl"))
	<-changed
	cancel()
	<-done
	if len(changed) > 0 {
		t.Error("a change too many")
	}
}

// A file that is written again and again, faster than files are quiet, is reported all the
// same: others may write in its directory.
func TestWatch_NeverQuiet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	changed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch{
			Files: func() []string { return []string{filepath.Join(dir, "a.hcl")} }, Changed: func() { changed <- struct{}{} },
			Problem: func(string, error) {}, Lost: func(error) {},
		}.Run(ctx)
	}()
	tick := time.NewTicker(quiet / 10)
	defer tick.Stop()
	for end := time.Now().Add(10 * longest); len(changed) < 2; <-tick.C {
		if err := os.WriteFile(filepath.Join(dir, "b.hcl"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Error("no change is reported")
			break
		}
	}
	cancel()
	<-done
}

// The watch follows a path to another directory: one that was put in its place, at once or
// later, and a link that was switched.
func TestWatch_AnotherDirectory(t *testing.T) {
	t.Parallel()
	for name, exchange := range map[string]func(old, next string) error{
		"renamed": func(old, next string) error { return errors.Join(os.Rename(old, old+"-gone"), os.Rename(next, old)) },
		"link": func(old, next string) error {
			return errors.Join(os.Symlink(next, next+"-link"), os.Rename(next+"-link", old))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at, first, next := filepath.Join(dir, "at"), filepath.Join(dir, "first"), filepath.Join(dir, "next")
			err := errors.Join(os.Mkdir(first, 0o700), os.Mkdir(next, 0o700))
			if name == "link" {
				err = errors.Join(err, os.Symlink(first, at))
			} else {
				err = errors.Join(err, os.Rename(first, at))
			}
			if err != nil {
				t.Fatal(err)
			}
			watched, changed := make(chan error, 10), make(chan struct{}, 10)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				Watch{
					Files: func() []string { return []string{filepath.Join(at, "t.tmpl")} }, Changed: func() { changed <- struct{}{} },
					Problem: func(_ string, err error) { watched <- err }, Lost: func(err error) { t.Error(err) },
				}.Run(ctx)
			}()
			if err := errors.Join(<-watched, exchange(at, next)); err != nil {
				t.Fatal(err)
			}
			<-changed
			if err := os.WriteFile(filepath.Join(at, "t.tmpl"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			<-changed
			cancel()
			<-done
		})
	}
}
