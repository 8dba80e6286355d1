package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// arrivals reports when a file is renamed into its place.
type arrivals struct {
	w    *fsnotify.Watcher
	path string
	c    chan time.Time
	done chan struct{}
}

// watchFile watches for path, whose directory must exist.
func watchFile(path string) (*arrivals, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	a := &arrivals{w: w, path: path, c: make(chan time.Time, 4096), done: make(chan struct{})}
	go a.run()
	return a, nil
}

func (a *arrivals) run() {
	defer close(a.done)
	for ev := range a.w.Events {
		if ev.Name == a.path && ev.Has(fsnotify.Create) {
			a.c <- time.Now()
		}
	}
}

// next returns when the file arrives next.
func (a *arrivals) next(ctx context.Context) (time.Time, error) { return await(ctx, a.c) }

// drain forgets what has arrived and returns how often it did.
func (a *arrivals) drain() int {
	for n := 0; ; n++ {
		select {
		case <-a.c:
		default:
			return n
		}
	}
}

func (a *arrivals) close() {
	_ = a.w.Close()
	<-a.done
}

// replace writes a file beside its place and renames it there; with sync it
// is on the disk first, and so is the rename.
func replace(path string, data []byte, sync bool) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // In our own directory.
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(tmp, path); err != nil || !sync {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
