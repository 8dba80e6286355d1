package config

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/view"
)

func TestReadDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, data string) {
		t.Helper()
		p := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		check(t, os.WriteFile(p, []byte(data), 0o600))
	}
	file("a", "1")
	file("d/b.conf", "2")
	check(t, os.Symlink("b.conf", filepath.Join(dir, "d/link")))
	keys, err := ReadDir(dir)
	check(t, err)
	if len(keys) != 3 || string(keys["a"]) != "1" || string(keys["d/b.conf"]) != "2" || string(keys["d/link"]) != "2" {
		t.Errorf("got %q", keys)
	}
	if keys, err := ReadDir(filepath.Join(dir, "d/b.conf")); err != nil || len(keys) != 1 || string(keys["b.conf"]) != "2" {
		t.Errorf("got %q, %v", keys, err)
	}

	file("ready", "x")
	file("a~", "x")
	file("bad\x01name", "x")
	check(t, os.Symlink("/etc/passwd", filepath.Join(dir, "outside")))
	check(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	check(t, os.Symlink("..", filepath.Join(dir, "d/loop")))
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	check(t, err)
	defer l.Close()
	huge, err := os.Create(filepath.Join(dir, "huge"))
	check(t, err)
	check(t, huge.Truncate(trees.MaxForcedValue+1))
	check(t, huge.Close())
	_, err = ReadDir(dir)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"ready: ", "a~: ", `"bad\x01name": key`, "outside: is a link", "dangling: is a link", "d/loop: link", "socket: is a socket", "huge: has"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if _, err := ReadDir(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory was read")
	}
}

func TestExportAndImport(t *testing.T) {
	t.Parallel()
	want := map[string]string{"a": "1", "d/b": "2", "e": ""}
	tree := view.TreeOf("c", "/c", want)
	var archive bytes.Buffer
	check(t, WriteTar(&archive, tree))
	keys, err := ReadTar(bytes.NewReader(archive.Bytes()))
	check(t, err)
	if !view.NewTree(view.Tree{}, view.KeysOf(keys)).SameKeys(tree) {
		t.Errorf("got %q", keys)
	}
	dir := filepath.Join(t.TempDir(), "out")
	check(t, WriteDir(dir, tree))
	keys, err = ReadDir(dir)
	check(t, err)
	if !view.NewTree(view.Tree{}, view.KeysOf(keys)).SameKeys(tree) {
		t.Errorf("got %q", keys)
	}
	if err := WriteDir(dir, tree); err == nil {
		t.Error("wrote into a directory that is not empty")
	}
	if _, err := ReadTar(strings.NewReader("not a tar archive, but long enough" + strings.Repeat("x", 600))); err == nil {
		t.Error("read garbage")
	}
}
