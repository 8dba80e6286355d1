package apply

import (
	"encoding/json"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
)

// owed remembers the bundles whose files are in place and whose reload has not
// succeeded: written before the swap, removed after the reload, so that an
// agent which dies in between makes it good. It is safe for concurrent use.
type owed struct {
	path string // empty: memory only
	fs   func() *files.FS

	mu    sync.Mutex // mu guards since.
	since map[string]time.Time
}

// newOwed reads what a former process owes.
func newOwed(stateDir string, fs func() *files.FS, log *slog.Logger) *owed {
	o := &owed{fs: fs, since: map[string]time.Time{}}
	if stateDir == "" {
		return o
	}
	o.path = filepath.Join(stateDir, "owed.json")
	if err := files.LoadJSON(o.path, &o.since); err != nil {
		log.Warn("cannot read which reloads are owed: a program may use old files until its next reload", "err", err)
		o.since = nil
	}
	if o.since == nil {
		o.since = map[string]time.Time{}
	}
	return o
}

// add notes that the bundle's reload is owed.
func (o *owed) add(bundle string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.since[bundle]; ok {
		return nil
	}
	o.since[bundle] = time.Now()
	return o.save((*files.FS).Save)
}

// clear notes that nothing is owed any more.
func (o *owed) clear(bundle string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.since[bundle]; !ok {
		return nil
	}
	delete(o.since, bundle)
	if len(o.since) > 0 {
		return o.save((*files.FS).Save)
	}
	return o.save((*files.FS).Note) // What a crash of the host may bring back is one reload more.
}

// has reports whether the bundle's reload is owed.
func (o *owed) has(bundle string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.since[bundle]
	return ok
}

// all lists the bundles whose reload is owed.
func (o *owed) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.since))
}

// at is since when the bundle's reload is owed; zero: it is not.
func (o *owed) at(bundle string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since[bundle]
}

// save writes the file with the given function. o.mu is held.
func (o *owed) save(write func(fs *files.FS, path string, data []byte) error) error {
	if o.path == "" {
		return nil
	}
	data, err := json.Marshal(o.since)
	if err != nil {
		return err
	}
	return write(o.fs(), o.path, data)
}
