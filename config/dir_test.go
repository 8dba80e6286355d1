package config

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

func TestReadDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, data string) {
		t.Helper()
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(data), 0o600))
	}
	file("a", "1")
	file("d/b.conf", "2")
	must(t, os.Symlink("b.conf", filepath.Join(dir, "d/link")))
	keys, err := ReadDir(dir)
	must(t, err)
	if len(keys) != 3 || string(keys["a"]) != "1" || string(keys["d/b.conf"]) != "2" || string(keys["d/link"]) != "2" {
		t.Errorf("got %q", keys)
	}
	if keys, err := ReadDir(filepath.Join(dir, "d/b.conf")); err != nil || len(keys) != 1 || string(keys["b.conf"]) != "2" {
		t.Errorf("got %q, %v", keys, err)
	}

	file("ready", "x")
	file("a~", "x")
	file("bad\x01name", "x")
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "outside")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(t, os.Symlink("..", filepath.Join(dir, "d/loop")))
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	must(t, err)
	defer l.Close()
	huge, err := os.Create(filepath.Join(dir, "huge"))
	must(t, err)
	must(t, huge.Truncate(maxForcedValue+1))
	must(t, huge.Close())
	_, err = ReadDir(dir)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"ready: ", "a~: ", `"bad\x01name": key`, "outside: link", "dangling: link", "d/loop: link", "socket: is a socket", "huge: has"} {
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
	must(t, WriteTar(&archive, tree))
	keys, err := ReadTar(bytes.NewReader(archive.Bytes()))
	must(t, err)
	if !has(want)(view.NewTree(view.Tree{}, view.KeysOf(keys))) {
		t.Errorf("got %q", keys)
	}
	dir := filepath.Join(t.TempDir(), "out")
	must(t, WriteDir(dir, tree))
	keys, err = ReadDir(dir)
	must(t, err)
	if !has(want)(view.NewTree(view.Tree{}, view.KeysOf(keys))) {
		t.Errorf("got %q", keys)
	}
	if err := WriteDir(dir, tree); err == nil {
		t.Error("wrote into a directory that is not empty")
	}
	if _, err := ReadTar(strings.NewReader("not a tar archive, but long enough" + strings.Repeat("x", 600))); err == nil {
		t.Error("read garbage")
	}
}

func FuzzDecodeManifest(f *testing.F) {
	m, _ := buildVersion(map[string][]byte{"a": []byte("1"), "b": nil})
	data, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeManifest(1, data)
		if err == nil && len(m.buckets) != 1<<m.Bits {
			t.Errorf("%d buckets for %d bits", len(m.buckets), m.Bits)
		}
	})
}

func FuzzDecodeBucket(f *testing.F) {
	f.Add(encodeBucket([]entry{{key: "a", size: 1}, {key: "b/c", size: 2, kind: kindParts}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := decodeBucket(data, 0, 0)
		if err == nil && len(entries) > 0 && !bytes.Equal(encodeBucket(entries), data) && len(data) < 1<<16 {
			// Lengths may be spelled longer than need be; what they say must hold.
			again, err := decodeBucket(encodeBucket(entries), 0, 0)
			if err != nil || len(again) != len(entries) {
				t.Errorf("does not survive: %v", err)
			}
		}
	})
}
