package files

import (
	"encoding/json"
	"maps"
	"sync"
)

// Store keeps one small value of the agent: in memory, and in a JSON file that the
// next process reads. It is safe for concurrent use.
type Store[T any] struct {
	path string // empty: memory only
	fs   *FS

	saving sync.Mutex // saving is held over a change and its write, so that writes are in order.
	mu     sync.Mutex // mu guards value. A slow disk does not hold it.
	value  T
}

// OpenStore reads the value of a former process. Without a path the value is kept in
// memory only. With an error, of a file that cannot be read, the store is empty and
// works; the next change replaces the file. fsys is for tests.
func OpenStore[T any](path string, fsys *FS) (*Store[T], error) {
	s := &Store[T]{path: path, fs: fsys}
	if path == "" {
		return s, nil
	}
	var v T
	if err := LoadJSON(path, &v); err != nil {
		return s, err
	}
	s.value = v
	return s, nil
}

// Read lets fn read the value. fn must not keep or change what it points to.
func (s *Store[T]) Read(fn func(v T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s.value)
}

// Write is how a change is written.
type Write int

// The ways to write a change.
const (
	WriteNothing Write = iota // nothing has changed
	WriteNote                 // as [Note] does
	WriteSave                 // as [Save] does
)

// Change lets fn change the value and say how that is written. After an error the change
// is in memory, and not on the disk.
func (s *Store[T]) Change(fn func(v *T) Write) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	how := fn(&s.value)
	data, err := json.Marshal(s.value)
	s.mu.Unlock()
	if err != nil || how == WriteNothing || s.path == "" {
		return err
	}
	return s.fs.replace(s.path, append(data, '\n'), how == WriteSave)
}

// Map is a [Store] of values by name.
type Map[V any] struct{ *Store[map[string]V] }

// OpenMap is [OpenStore] of a map.
func OpenMap[V any](path string, fsys *FS) (Map[V], error) {
	s, err := OpenStore[map[string]V](path, fsys)
	if s.value == nil {
		s.value = map[string]V{}
	}
	return Map[V]{s}, err
}

// Get returns the value of a name; the zero value and false without one.
func (m Map[V]) Get(name string) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.value[name]
	return v, ok
}

// All returns a copy of the map.
func (m Map[V]) All() map[string]V {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.value)
}

// Change lets fn change the map and say how that is written.
func (m Map[V]) Change(fn func(all map[string]V) Write) error {
	return m.Store.Change(func(all *map[string]V) Write { return fn(*all) })
}

// Set sets the value of a name.
func (m Map[V]) Set(name string, v V, how Write) error {
	return m.Change(func(all map[string]V) Write {
		all[name] = v
		return how
	})
}
