package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// localLedger is the ledger of a hook that runs on every host: a file in the
// state directory, or memory without one.
type localLedger struct {
	path string // empty: memory
	mem  record
}

func (l *localLedger) load(context.Context) (record, error) {
	if l.path == "" {
		return l.mem.clone(), nil
	}
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read ledger: %w", err)
	}
	return decodeRecord(data)
}

func (l *localLedger) store(_ context.Context, r record) error {
	if l.path == "" {
		l.mem = r.clone()
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeFile(l.path, data)
}

// newer takes any difference for a change: a ZooKeeper that was replaced by
// an empty one counts its zxids from the start again.
func (*localLedger) newer(z, known int64) bool { return z != known }

// writeFile replaces a file of ours: temporary file, sync, rename.
func writeFile(path string, data []byte) error {
	if err := replaceFile(path, data, (*os.File).Sync); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// noteFile replaces a file of ours that a killed process must find whole, and
// that a crash of the host may lose. It costs no sync.
func noteFile(path string, data []byte) error {
	return replaceFile(path, data, func(*os.File) error { return nil })
}

func replaceFile(path string, data []byte, sync func(*os.File) error) error {
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

// syncDir makes renames in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // a directory of ours.
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
