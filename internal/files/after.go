package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// After is a file as a change will leave it.
type After struct {
	Path     string // of the file itself, where the destination is a link
	Data     []byte
	Mode     fs.FileMode
	UID, GID int // -1: of this process
	Gone     bool
}

// After returns the file as the swap will leave it.
func (s *Staged) After() After {
	return After{Path: s.dir.join(s.base), Data: s.data, Mode: s.attr.mode, UID: s.attr.uid, GID: s.attr.gid, Gone: s.remove}
}

// Beside returns the path of the staged file in the directory of its destination; "" when
// there is none.
func (s *Staged) Beside() string {
	if s.temp == "" || s.swapped {
		return ""
	}
	return s.dir.join(s.temp)
}

// AfterMakeDirs returns a file as it will be in a directory that [MakeDirs] has yet to
// make; false: the directory is there.
func AfterMakeDirs(f File, data []byte) (After, bool, error) {
	if _, err := os.Stat(filepath.Dir(f.Destination)); !errors.Is(err, fs.ErrNotExist) {
		return After{}, false, nil
	}
	s := &Staged{file: f}
	attr, err := s.wanted()
	return After{Path: f.Destination, Data: data, Mode: attr.mode, UID: attr.uid, GID: attr.gid}, true, err
}
