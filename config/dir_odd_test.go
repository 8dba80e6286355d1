package config

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// files writes files below a new directory.
func files(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		p := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		check(t, os.WriteFile(p, []byte("x"), 0o600))
	}
	return dir
}

// Names that no znode can have, or no terminal should show, are refused in words
// that are printable, all at once.
func TestReadDir_OddNames(t *testing.T) {
	t.Parallel()
	dir := files(t, "good", "new\nline", "tab\tbed", "esc\x1b[2J", "not\xffutf8", "\ufffe", "private\ue000", "freeze", "objects/aa", "d/.#lock", "long/"+strings.Repeat("a", 250))
	keys, err := ReadDir(dir)
	if err == nil {
		t.Fatalf("got %d keys", len(keys))
	}
	for _, want := range []string{
		`"new\nline": key`, `"tab\tbed": key`, `"esc\x1b[2J": key`, `"not\xffutf8": key "not\xffutf8" is not UTF-8`,
		`"private\ue000": key`, `freeze: key "freeze": "freeze" is reserved`, `objects/aa: key "objects/aa": "objects" is reserved`, "d/.#lock: is a file of an editor",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if strings.ContainsAny(err.Error(), "\x1b\t") {
		t.Errorf("what cannot be printed is shown: %q", err)
	}
	if !strings.HasPrefix(err.Error(), "read config from "+dir+": 9 errors:\n  ") {
		t.Errorf("got %v", err)
	}
}

// What changes while it is read is refused, and never waited for.
func TestReadDir_ChangesUnderway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(path string) error
		want   string
	}{
		"file vanishes":         {os.Remove, "no such file or directory"},
		"file becomes a pipe":   {func(p string) error { return replace(p, func() error { return syscall.Mkfifo(p, 0o600) }) }, "d/b: was replaced while it was read"},
		"file becomes a socket": {func(p string) error { return replace(p, func() error { return mksocket(p) }) }, "no such device or address"},
		"file becomes a dir":    {func(p string) error { return replace(p, func() error { return os.Mkdir(p, 0o700) }) }, "d/b: was replaced while it was read"},
		"file becomes a link":   {func(p string) error { return replace(p, func() error { return os.Symlink("/etc/passwd", p) }) }, "escapes"},
		"file is another":       {func(p string) error { return replace(p, func() error { return os.WriteFile(p, nil, 0o600) }) }, "d/b: was replaced while it was read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := files(t, "a", "d/b")
			keys, err := readDir(dir, func(at string) {
				if at == "d/b" {
					check(t, c.change(filepath.Join(dir, at)))
				}
			})
			if err == nil || !strings.Contains(err.Error(), c.want) || keys != nil {
				t.Errorf("got %q, %v; want %q", keys, err, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		change func(path string) error
		want   string
	}{
		"directory vanishes":        {os.RemoveAll, "no such file or directory"},
		"directory becomes a file":  {func(p string) error { return replace(p, func() error { return os.WriteFile(p, nil, 0o600) }) }, "d: "},
		"directory leads elsewhere": {func(p string) error { return replace(p, func() error { return os.Symlink("/etc", p) }) }, "escapes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := files(t, "a", "d/b")
			keys, err := readDir(dir, func(at string) {
				if at == "d" {
					check(t, c.change(filepath.Join(dir, at)))
				}
			})
			if err == nil || !strings.Contains(err.Error(), c.want) || keys != nil {
				t.Errorf("got %q, %v; want %q", keys, err, c.want)
			}
		})
	}
}

// replace puts something else in the place of a file or directory. The former one
// is moved away: its inode must not be used again.
func replace(path string, put func() error) error {
	if err := os.Rename(path, filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)+"-former")); err != nil {
		return err
	}
	return put()
}

func mksocket(path string) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
}

// An archive is no way around the rules for names.
func TestReadTar_Refuses(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"../up": "is not a clean relative path", "/abs": "is not a clean relative path", "ready": "is reserved",
		"a\nb": "U+000A", "": "",
	} {
		keys, err := ReadTar(tarOf(t, name))
		if err == nil || !strings.Contains(err.Error(), want) || keys != nil {
			t.Errorf("%q: got %q, %v; want %q", name, keys, err, want)
		}
	}
	if _, err := ReadTar(tarOf(t, "a", "./a")); err == nil || !strings.Contains(err.Error(), "a: appears twice") {
		t.Errorf("got %v", err)
	}
}

// An archive whose writer died is not a smaller tree, also when it ends between two files.
func TestReadTar_CutOff(t *testing.T) {
	t.Parallel()
	whole, err := io.ReadAll(tarOf(t, "a", "b"))
	check(t, err)
	for n := range whole {
		if n%512 == 0 {
			if keys, err := ReadTar(bytes.NewReader(whole[:n])); err == nil {
				t.Errorf("read %q from %d of %d bytes", keys, n, len(whole))
			}
		}
	}
}

// tarOf is an archive of files of the names.
func tarOf(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		check(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 1, Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte("x"))
		check(t, err)
	}
	check(t, w.Close())
	return &b
}
