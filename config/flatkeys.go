package config

import (
	"maps"
	"slices"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/view"
)

// flatKeys turns the znodes of a flat or plain tree into keys. It reuses unchanged
// keys.
type flatKeys struct{ keys *view.Keys }

// update returns the keys of the snapshot. Only the touched znodes may differ from
// the last call.
//
// The root is not a key. A znode with children and without data is not a key
// either: it only holds its children.
func (f *flatKeys) update(snap *mirror.Snapshot, touched map[string]struct{}) *view.Keys {
	edit := f.keys.Edit()
	for _, rel := range slices.Sorted(maps.Keys(touched)) {
		if rel == "" {
			continue
		}
		n, ok := snap.Get(rel)
		if !ok || len(n.Data) == 0 && len(n.Children) > 0 {
			edit.Delete(rel)
			continue
		}
		old, had := edit.Get(rel)
		if !had || old.Mzxid != n.Stat.Mzxid {
			edit.Set(rel, view.Key{Value: n.Data, Mzxid: n.Stat.Mzxid, Mtime: n.Stat.Mtime})
		}
	}
	f.keys = edit.Done()
	return f.keys
}
