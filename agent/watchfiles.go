package agent

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// fileQuiet is how long settings and templates must be quiet before they are
// read: an editor writes in several steps.
const fileQuiet = 100 * time.Millisecond

// watchFiles loads the settings again when one of their files or a template
// changes. The directories are watched, for a watch on a file dies at its
// first rename.
func (a *Agent) watchFiles(ctx context.Context) {
	if a.first.Load == nil {
		return
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		a.conds.Open("files-not-watched", "", err.Error())
		return
	}
	defer func() { _ = w.Close() }()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		dirs, files := a.watched()
		a.follow(w, dirs)
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if e.Op != fsnotify.Chmod && concerns(e.Name, files) {
				timer.Reset(fileQuiet)
			}
		case err := <-w.Errors:
			// Events were lost: what changed is not known.
			a.log.Warn("file events lost", "err", err)
			timer.Reset(fileQuiet)
		case <-timer.C:
			if err := a.Reload(ctx); err != nil {
				a.log.Debug("changed settings kept out", "err", err)
			}
		}
	}
}

// watched lists the directories to be watched and the files in them that
// matter.
func (a *Agent) watched() (dirs, files []string) { //nolint:nonamedreturns // two lists need names.
	cfg := a.cfg.Load()
	files = slices.Clone(cfg.Files)
	for _, b := range cfg.Bundles {
		for _, t := range b.Templates {
			if t.Source != "" {
				files = append(files, t.Source)
			}
		}
	}
	for i, f := range files {
		if abs, err := filepath.Abs(f); err == nil {
			files[i] = abs
		}
		if d := filepath.Dir(files[i]); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs, files
}

// follow watches the directories that are not watched yet, and no others.
func (a *Agent) follow(w *fsnotify.Watcher, dirs []string) {
	have := w.WatchList()
	for _, d := range have {
		if !slices.Contains(dirs, d) {
			_ = w.Remove(d)
		}
	}
	for _, d := range dirs {
		if slices.Contains(have, d) {
			continue
		}
		err := w.Add(d)
		a.conds.Set("files-not-watched", d, err)
	}
}

// concerns reports whether an event is about one of the files, or about a
// settings file that is new in a directory of them.
func concerns(name string, files []string) bool {
	if slices.Contains(files, name) {
		return true
	}
	if filepath.Ext(name) != ".hcl" {
		// A directory of projected files (a Kubernetes volume) is switched
		// by renaming one link.
		return filepath.Base(name) == "..data"
	}
	return slices.ContainsFunc(files, func(f string) bool {
		return filepath.Ext(f) == ".hcl" && filepath.Dir(f) == filepath.Dir(name)
	})
}
