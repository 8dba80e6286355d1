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

	mu   sync.Mutex // mu guards list.
	list map[string]debt
}

// debt is the reload that one bundle owes.
type debt struct {
	Since    time.Time `json:"since"`
	Restored bool      `json:"restored,omitempty"` // of old files that came back
}

// newOwed reads what a former process owes.
func newOwed(stateDir string, fs func() *files.FS, log *slog.Logger) *owed {
	o := &owed{fs: fs, list: map[string]debt{}}
	if stateDir == "" {
		return o
	}
	o.path = filepath.Join(stateDir, "owed.json")
	if err := files.LoadJSON(o.path, &o.list); err != nil {
		log.Warn("cannot read which reloads are owed: a program may use old files until its next reload", "err", err)
		o.list = nil
	}
	if o.list == nil {
		o.list = map[string]debt{}
	}
	return o
}

// add notes that the bundle's reload is owed: of new files, or of restored ones.
func (o *owed) add(bundle string, restored bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	d, ok := o.list[bundle]
	if ok && d.Restored == restored {
		return nil
	}
	if d.Restored = restored; !ok {
		d.Since = time.Now()
	}
	o.list[bundle] = d
	return o.save((*files.FS).Save)
}

// clear notes that nothing is owed any more.
func (o *owed) clear(bundle string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.list[bundle]; !ok {
		return nil
	}
	delete(o.list, bundle)
	if len(o.list) > 0 {
		return o.save((*files.FS).Save)
	}
	return o.save((*files.FS).Note) // What a crash of the host may bring back is one reload more.
}

// has reports whether the bundle's reload is owed.
func (o *owed) has(bundle string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.list[bundle]
	return ok
}

// restored reports whether the bundle's reload is owed for files that came back.
func (o *owed) restored(bundle string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.list[bundle].Restored
}

// all lists the bundles whose reload is owed.
func (o *owed) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.list))
}

// at is since when the bundle's reload is owed; zero: it is not.
func (o *owed) at(bundle string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.list[bundle].Since
}

// save writes the file with the given function. o.mu is held.
func (o *owed) save(write func(fs *files.FS, path string, data []byte) error) error {
	if o.path == "" {
		return nil
	}
	data, err := json.Marshal(o.list)
	if err != nil {
		return err
	}
	return write(o.fs(), o.path, data)
}
