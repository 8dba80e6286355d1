package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// MakeDirs makes a directory and its parents where they are missing, with the
// mode 0755 and the owner that the files in it have. It returns what it made,
// the innermost first.
func MakeDirs(dir, owner, group string) ([]string, error) {
	uid, gid, err := ids(owner, group)
	if err != nil {
		return nil, err
	}
	var missing []string
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		switch {
		case err == nil && !info.IsDir():
			return nil, fmt.Errorf("make directory %s: %s is no directory", dir, d)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("make directory %s: %w", dir, err)
		}
		if err == nil {
			break
		}
		missing = append(missing, d)
	}
	var made []string
	for _, d := range slices.Backward(missing) {
		if err := makeOwned(d, uid, gid); err != nil {
			return made, fmt.Errorf("make directory: %w", err)
		}
		made = slices.Insert(made, 0, d)
	}
	return made, nil
}

func makeOwned(dir string, uid, gid int) error {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as the settings say it: other programs read what is in it.
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	err := os.Chmod(dir, 0o755) //nolint:gosec // whatever the umask is.
	if err == nil && (uid >= 0 || gid >= 0) {
		err = os.Lchown(dir, uid, gid)
	}
	return err
}

// RemoveDirs removes directories that MakeDirs made, as far as they are empty.
func RemoveDirs(made []string) {
	for _, d := range made {
		_ = os.Remove(d)
	}
}
