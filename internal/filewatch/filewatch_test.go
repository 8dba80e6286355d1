package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
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
