package apply

import (
	"maps"
	"slices"

	"github.com/zkagent/zkagent/view"
)

// With many bundles most changes concern few of them. What a bundle reads of a
// config by the names of keys alone follows from the keys that changed. They are
// looked up once for all bundles.

// maxChanged is from how many changed keys on bundles compare for themselves.
const maxChanged = 256

// Change is what an update changes.
type Change struct {
	source view.Source
	keys   map[string]struct{} // of a config; nil: not known
}

// ChangeOf compares two states of one source; old may be nil.
func ChangeOf(old, now view.Update) Change {
	c := Change{source: now.Source()}
	a, wasTree := old.(*view.Tree)
	b, isTree := now.(*view.Tree)
	if !wasTree || !isTree {
		return c
	}
	keys := map[string]struct{}{}
	a.Keys().Diff(b.Keys(), func(path string, _, _ *view.Key) {
		if len(keys) <= maxChanged {
			keys[path] = struct{}{}
		}
	})
	if len(keys) <= maxChanged {
		c.keys = keys
	}
	return c
}

// findNamed notes the keys that the bundle reads of configs of which it reads
// nothing else.
func (b *parsed) findNamed() {
	b.named = map[view.Source][]string{}
	for _, s := range b.Sources {
		if s.Kind == view.KindConfig && (b.Config.ForEach == nil || *b.Config.ForEach != s) {
			b.named[s] = []string{}
		}
	}
	for _, t := range b.templates {
		d := t.tmpl.Uses()
		if slices.Contains(d.Dynamic, view.KindConfig) {
			clear(b.named)
		}
		for _, u := range d.Uses {
			keys, ok := b.named[u.Source]
			if !ok {
				continue
			}
			if u.Prefix || u.Version {
				delete(b.named, u.Source)
				continue
			}
			b.named[u.Source] = append(keys, u.Key)
		}
	}
	maps.DeleteFunc(b.named, func(_ view.Source, keys []string) bool { return len(keys) == 0 })
}

// Reads reports whether the bundle may read what changed.
func (b *parsed) Reads(c Change) bool {
	if !slices.Contains(b.Sources, c.source) {
		return false
	}
	named, ok := b.named[c.source]
	if !ok || c.keys == nil {
		return true
	}
	return slices.ContainsFunc(named, func(key string) bool {
		_, changed := c.keys[key]
		return changed
	})
}
