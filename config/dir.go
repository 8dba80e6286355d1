package config

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/view"
)

// odd reports file names that editors and version control leave behind. Publishing
// them is always a mistake.
func odd(name string) bool {
	switch name {
	case ".git", ".hg", ".svn", "CVS", ".DS_Store", "Thumbs.db":
		return true
	}
	return strings.HasSuffix(name, "~") || strings.HasSuffix(name, ".swp") || strings.HasPrefix(name, ".#") ||
		strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#")
}

// ReadDir reads a directory as the keys of a config. The file a/b becomes the key
// a/b. If name is a file, its base name becomes the only key.
//
// Sockets, devices, links that lead out of the directory, unreadable and too large
// files, names that cannot be keys and names that editors leave behind are errors.
// ReadDir returns all of them at once and skips no file silently.
func ReadDir(name string) (map[string][]byte, error) {
	return readDir(name, func(string) {})
}

// readDir is ReadDir with a hook for tests: it calls step between the stat of each
// file or directory and the read, so that a test can replace the file.
func readDir(name string, step func(name string)) (map[string][]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("read config: %w; name a directory with one file for each key", err)
	}
	dir, start := name, "."
	if !info.IsDir() {
		dir, start = filepath.Dir(name), filepath.Base(name)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	defer func() { _ = root.Close() }()
	r := &dirReader{root: root, keys: map[string][]byte{}, step: step}
	r.read(start)
	if err := trees.AllErrors(r.errs); err != nil {
		return nil, fmt.Errorf("read config from %s: %w", name, err)
	}
	return r.keys, nil
}

// dirReader reads one directory. It follows no link that leads out of it.
type dirReader struct {
	root *os.Root
	keys map[string][]byte
	errs *multierror.Error
	dirs []fs.FileInfo // being read: a link may lead back to one of them
	step func(name string)
}

func (r *dirReader) read(name string) {
	err := r.readAny(name)
	if err == nil {
		return
	}
	if strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }) || !utf8.ValidString(name) {
		name = strconv.Quote(name) // it is shown on terminals
	}
	r.errs = multierror.Append(r.errs, fmt.Errorf("%s: %w", name, err))
}

func (r *dirReader) readAny(name string) error {
	info, err := r.root.Stat(name)
	if err != nil {
		if link, lerr := r.root.Lstat(name); lerr == nil && link.Mode()&fs.ModeSymlink != 0 {
			err = fmt.Errorf("is a link that leads nowhere, or out of the directory: %w", err)
		}
		return err
	}
	kind := "special file"
	switch mode := info.Mode(); {
	case name != "." && odd(path.Base(name)):
		return errors.New("is a file of an editor or of version control, not a key: remove it")
	case mode.IsDir():
		return r.readDir(name, info)
	case mode.IsRegular():
		return r.readFile(name, info)
	case mode&fs.ModeSocket != 0:
		kind = "socket"
	case mode&fs.ModeNamedPipe != 0:
		kind = "named pipe"
	case mode&fs.ModeDevice != 0:
		kind = "device"
	}
	return fmt.Errorf("is a %s, not a file", kind)
}

func (r *dirReader) readDir(name string, info fs.FileInfo) error {
	if slices.ContainsFunc(r.dirs, func(d fs.FileInfo) bool { return os.SameFile(d, info) }) {
		return errors.New("link that leads back to a directory above it")
	}
	r.dirs = append(r.dirs, info)
	defer func() { r.dirs = r.dirs[:len(r.dirs)-1] }()
	r.step(name)
	f, err := r.root.Open(name)
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	_ = f.Close()
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if len(r.keys) > MaxKeys {
			return fmt.Errorf("more than %d files: %w", MaxKeys, ErrBounds)
		}
		r.read(path.Join(name, e.Name()))
	}
	return nil
}

func (r *dirReader) readFile(name string, info fs.FileInfo) error {
	if err := ValidateKey(name); err != nil {
		return err
	}
	if info.Size() > trees.MaxForcedValue {
		return fmt.Errorf("has %d bytes, at most %d are allowed: %w", info.Size(), MaxValue, ErrBounds)
	}
	r.step(name)
	// O_NONBLOCK: do not hang when a pipe has replaced the file.
	f, err := r.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return errors.Join(errors.New("was replaced while it was read"), err)
	}
	// The file may grow while it is read.
	data, err := io.ReadAll(io.LimitReader(f, trees.MaxForcedValue+1))
	if err == nil && len(data) > trees.MaxForcedValue {
		err = fmt.Errorf("has more than %d bytes: %w", trees.MaxForcedValue, ErrBounds)
	}
	if err == nil {
		r.keys[name] = data
	}
	return err
}

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
	end := &tail{r: r}
	for tr := tar.NewReader(end); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && end.zeros >= tarEnd {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("import: the archive is not complete: %w", err)
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

// tarEnd is how many zero bytes end a complete archive.
const tarEnd = 1024

// tail counts the zero bytes at the end of the data read.
type tail struct {
	r     io.Reader
	zeros int
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	rest := len(bytes.TrimRight(p[:n], "\x00"))
	if rest > 0 {
		t.zeros = 0
	}
	t.zeros += n - rest
	return n, err
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
