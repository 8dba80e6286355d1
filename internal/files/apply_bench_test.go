package files

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// BenchmarkApply measures a whole change of one file of 64 KB beside its
// floor: create, write, fsync, rename, fsync of the directory.
func BenchmarkApply(b *testing.B) {
	body := bytes.Repeat([]byte("server 10.0.0.1:8080 weight=1;\n"), 2000)
	b.Run("floor", func(b *testing.B) {
		dir := b.TempDir()
		for i := 0; b.Loop(); i++ {
			if err := floor(dir, strconv.AppendInt(body, int64(i), 10)); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, state := range map[string]bool{"stage": false, "journal": true} {
		b.Run(name, func(b *testing.B) {
			f, cfg := File{Destination: filepath.Join(b.TempDir(), "a.conf")}, TxConfig{Bundle: "a"}
			if state {
				cfg.StateDir = b.TempDir()
			}
			for i := 0; b.Loop(); i++ {
				tx := Begin(cfg)
				if _, err := tx.Stage(f, strconv.AppendInt(body, int64(i), 10)); err != nil {
					b.Fatal(err)
				}
				if err := tx.Swap(); err != nil {
					b.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func floor(dir string, data []byte) error {
	f, err := os.Create(filepath.Join(dir, "temp"))
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	_ = f.Close()
	if err == nil {
		err = os.Rename(filepath.Join(dir, "temp"), filepath.Join(dir, "a.conf"))
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
