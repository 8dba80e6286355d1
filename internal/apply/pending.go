package apply

import (
	"time"

	"github.com/zkagent/zkagent/internal/files"
)

// pendingReloads are the bundles whose files are in place and whose reload has not
// succeeded: written before the swap, removed after the reload, so that the next process
// makes up for one that dies in between.
type pendingReloads struct{ files.Map[pendingReload] }

// pendingReload is the reload of one bundle that is still to succeed.
type pendingReload struct {
	Since    time.Time `json:"since"`
	Restored bool      `json:"restored,omitempty"` // of old files that came back
}

// add notes that the bundle's reload is pending: of new files, or of restored ones.
func (p pendingReloads) add(bundle string, restored bool) error {
	return p.Change(func(all map[string]pendingReload) files.Write {
		r, ok := all[bundle]
		if ok && r.Restored == restored {
			return files.WriteNothing
		}
		if r.Restored = restored; !ok {
			r.Since = time.Now()
		}
		all[bundle] = r
		return files.WriteSave
	})
}

// clear notes that no reload of the bundle is pending any more. A crash of the host may
// bring the note back when it was the last one: that costs one reload.
func (p pendingReloads) clear(bundle string) error {
	return p.Change(func(all map[string]pendingReload) files.Write {
		if _, ok := all[bundle]; !ok {
			return files.WriteNothing
		}
		delete(all, bundle)
		if len(all) > 0 {
			return files.WriteSave
		}
		return files.WriteNote
	})
}

// has reports whether the bundle's reload is pending.
func (p pendingReloads) has(bundle string) bool {
	_, ok := p.Get(bundle)
	return ok
}

// restored reports whether the bundle's reload is pending for files that came back.
func (p pendingReloads) restored(bundle string) bool {
	r, _ := p.Get(bundle)
	return r.Restored
}
