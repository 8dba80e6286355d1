//go:build !linux

package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

type walked struct {
	path   string
	info   fs.FileInfo
	shared bool
}

// walk follows all links where directories cannot be opened for passing
// through. The agent runs as root on Linux only.
func walk(path, _ string) (walked, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return walked{}, err
	}
	info, err := os.Stat(real)
	return walked{path: real, info: info}, err
}

// extended has nothing to carry where access lists are read in other ways.
type extended struct {
	known bool
	acl   []byte
}

func readExtended(*os.File) (extended, error) { return extended{}, nil }

func (extended) set(*FS, *os.File, string) error { return nil }

// changeTime is unknown: nothing depends on it.
func changeTime(*syscall.Stat_t) int64 { return 0 }
