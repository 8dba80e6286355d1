package config

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/view"
)

// WriteTar writes the keys of a tree as a tar archive: one file per key, in
// bytewise order, with fixed times and owners, so that equal trees give equal
// archives.
func WriteTar(w io.Writer, t *view.Tree) error {
	tw := tar.NewWriter(w)
	var err error
	t.Walk("", func(key string, k view.Key) bool {
		h := &tar.Header{Name: key, Mode: 0o644, Size: int64(len(k.Value)), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg}
		if err = tw.WriteHeader(h); err == nil {
			_, err = tw.Write(k.Value)
		}
		return err == nil
	})
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// ReadTar reads the keys from a tar archive. Entries other than files and
// directories, invalid keys and duplicate names are errors. ReadTar returns all
// errors at once.
func ReadTar(r io.Reader) (map[string][]byte, error) {
	keys := map[string][]byte{}
	var errs []error
	total := int64(0)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("import: %w", err)
		}
		name := path.Clean(h.Name)
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if bad := checkTarFile(h, name, keys); bad != nil {
			errs = append(errs, bad)
			continue
		}
		if total += h.Size; total > maxImport || len(keys) == MaxKeys {
			return nil, fmt.Errorf("import: archive holds more than %d bytes or %d files: %w", int64(maxImport), MaxKeys, ErrBounds)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", name, err)
		}
		keys[name] = data
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	return keys, nil
}

// maxImport bounds the memory that an archive can take.
const maxImport = 1 << 30

func checkTarFile(h *tar.Header, name string, keys map[string][]byte) error {
	if h.Typeflag != tar.TypeReg {
		return fmt.Errorf("%s: is not a file", h.Name)
	}
	if err := ValidateKey(name); err != nil {
		return err
	}
	if _, ok := keys[name]; ok {
		return fmt.Errorf("%s: appears twice", name)
	}
	if h.Size > trees.MaxForcedValue {
		return fmt.Errorf("%s: has %d bytes, at most %d are allowed: %w", name, h.Size, int64(trees.MaxForcedValue), ErrBounds)
	}
	return nil
}

// WriteDir writes the keys of a tree as files below a directory. It creates the
// directory, which must be empty if it exists, so that an export never mixes with
// other files.
func WriteDir(dir string, t *view.Tree) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // an export is read by others
		return fmt.Errorf("export: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("export: directory %s is not empty", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() { _ = root.Close() }()
	t.Walk("", func(key string, k view.Key) bool {
		if err = ValidateKey(key); err != nil {
			return false
		}
		if err = root.MkdirAll(path.Dir(key), 0o755); err == nil {
			err = root.WriteFile(key, k.Value, 0o644)
		}
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}
