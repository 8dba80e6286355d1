package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
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

// OpenStore reads the value of a previous process from a file below the state directory.
// Without a directory the value is kept in memory only. With an error, of a file that
// cannot be read, the store is empty and works; the next change replaces the file. fsys
// is for tests.
func OpenStore[T any](stateDir, name string, fsys *FS) (*Store[T], error) {
	s := &Store[T]{fs: fsys}
	if stateDir == "" {
		return s, nil
	}
	s.path = filepath.Join(stateDir, name)
	var v T
	if err := LoadJSON(s.path, &v); err != nil {
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
func OpenMap[V any](stateDir, name string, fsys *FS) (Map[V], error) {
	s, err := OpenStore[map[string]V](stateDir, name, fsys)
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

// Save replaces one of our own files: temporary file, sync, rename, sync of the
// directory. The file has mode 0600 and survives a power loss. Save makes the
// directory, and follows no link at the name. Files of users go through [Begin].
func Save(path string, data []byte) error { return (*FS)(nil).Save(path, data) }

// SaveJSON is [Save] of a value as JSON.
func SaveJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Save(path, append(data, '\n'))
}

// LoadJSON reads what [SaveJSON] wrote into v. Without the file v stays as it is.
func LoadJSON(path string, v any) error {
	data, err := readOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Note replaces one of our own files without a sync. A killed process leaves
// the file whole; a power loss may bring the old one back.
func Note(path string, data []byte) error { return (*FS)(nil).Note(path, data) }

// Save is [Save] on a disk of a test.
func (f *FS) Save(path string, data []byte) error { return f.replace(path, data, true) }

// Note is [Note] on a disk of a test.
func (f *FS) Note(path string, data []byte) error { return f.replace(path, data, false) }

func (f *FS) replace(path string, data []byte, durable bool) error {
	if err := f.makeOwn(filepath.Dir(path)); err != nil {
		return err
	}
	d, err := openDirectory(f, filepath.Dir(path), SymlinkFollow)
	if err != nil {
		return err
	}
	defer d.close()
	base := filepath.Base(path)
	temp := tempName(base, "new")
	_, err = d.create(temp, data, private, !durable)
	if err == nil {
		err = d.rename(temp, base)
	}
	if err != nil {
		_ = d.remove(temp)
		return err
	}
	if !durable {
		return nil
	}
	return d.sync()
}

// Append adds to the end of one of our own files, which must have size bytes, and
// makes that durable. After an error or a power loss any part of data may be there.
func Append(path string, size int64, data []byte) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0) //nolint:gosec // one of our own files
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	info, err := file.Stat()
	if err == nil && info.Size() != size {
		err = fmt.Errorf("%s has %d bytes, not the %d that were written", path, info.Size(), size)
	}
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	return file.Sync()
}

// StateFile is a file of the agent below its state directory. The name of the
// thing that it is about may hold any byte.
func StateFile(stateDir, kind, name string) string {
	return filepath.Join(stateDir, kind, Name(name)+".json")
}

// Name makes a name safe as a file name, and distinct from other names.
func Name(name string) string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, len(name))
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b = append(b, c)
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}
