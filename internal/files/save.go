package files

import (
	"errors"
	"os"
	"path/filepath"
)

// Save replaces one of the agent's own files: temporary file, sync, rename,
// sync of the directory. The file survives a power loss.
func Save(path string, data []byte) error {
	if err := replace(path, data, (*os.File).Sync); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

// Note replaces one of the agent's own files without a sync. A killed process
// leaves the file whole; a power loss may lose it.
func Note(path string, data []byte) error {
	return replace(path, data, func(*os.File) error { return nil })
}

func replace(path string, data []byte, sync func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, sync(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // a directory of the agent.
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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
