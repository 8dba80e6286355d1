// Package filewatch reports changes of files. It watches their directories: a watch
// on a file dies at its first rename.
package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quiet is how long files must be quiet before a change is reported: an editor
// writes in several steps.
const quiet = 100 * time.Millisecond

// longest is how long a change waits for quiet.
const longest = 2 * time.Second

// lookEvery is how often the watch looks whether a path leads to another directory: one
// that was renamed, or a link that was switched. No event tells.
const lookEvery = 2 * time.Second

// Watch is what is watched, and what is called.
type Watch struct {
	// Files lists the files; it is asked again after each change. A new file
	// beside a settings file counts, too.
	Files func() []string
	// New are further endings of names whose new files count, beside one of them.
	New []string
	// Changed is called after a change, on the goroutine of Run.
	Changed func()
	// AtOnce calls Changed when the watch begins.
	AtOnce bool
	// Problem reports whether a directory is watched; an empty one stands for all.
	Problem func(dir string, err error)
	// Lost reports that events were lost. Changed follows.
	Lost func(err error)
}

// Run watches until ctx ends.
func (w Watch) Run(ctx context.Context) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		w.Problem("", err)
		return
	}
	defer func() { _ = n.Close() }()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	if w.AtOnce {
		timer.Reset(0)
	}
	var first time.Time // of the changes that wait
	soon := func() {
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(quiet, time.Until(first.Add(longest))))
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	seen := map[string]os.FileInfo{}
	for {
		files, dirs := absolute(w.Files())
		if w.follow(n, seen, dirs) {
			soon()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case e, ok := <-n.Events:
			if !ok {
				return
			}
			if e.Op != fsnotify.Chmod && w.concerns(e.Name, files) {
				soon()
			}
		case err := <-n.Errors:
			w.Lost(err) // what changed is not known
			soon()
		case <-timer.C:
			first = time.Time{}
			w.Changed()
		}
	}
}

// absolute returns the files with whole paths, and their directories.
func absolute(list []string) (files, dirs []string) { //nolint:nonamedreturns // two lists need names.
	for _, f := range list {
		if abs, err := filepath.Abs(f); err == nil {
			f = abs
		}
		files = append(files, f)
		if d := filepath.Dir(f); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return files, dirs
}

// follow watches the directories. seen are those that it watches, nil for one that it
// cannot. It reports whether one of them is another directory than before.
func (w Watch) follow(n *fsnotify.Watcher, seen map[string]os.FileInfo, dirs []string) bool {
	for d := range seen {
		if !slices.Contains(dirs, d) {
			_ = n.Remove(d)
			delete(seen, d)
		}
	}
	moved := false
	for _, d := range dirs {
		was, known := seen[d]
		info, err := os.Stat(d)
		if err == nil && known && was != nil && os.SameFile(info, was) {
			continue
		}
		_ = n.Remove(d)
		if err == nil {
			err = n.Add(d)
		}
		if err != nil {
			info = nil
		}
		w.Problem(d, err)
		seen[d] = info
		moved = moved || known && err == nil
	}
	return moved
}

// concerns reports whether an event is about one of the files, or about a
// file that is new in a directory of them and has such an ending.
func (w Watch) concerns(name string, files []string) bool {
	if slices.Contains(files, name) || filepath.Base(name) == "..data" {
		// A directory of projected files (a Kubernetes volume) is switched
		// by renaming one link.
		return true
	}
	for _, end := range append([]string{".hcl"}, w.New...) {
		if strings.HasSuffix(name, end) && slices.ContainsFunc(files, func(f string) bool {
			return strings.HasSuffix(f, end) && filepath.Dir(f) == filepath.Dir(name)
		}) {
			return true
		}
	}
	return false
}
