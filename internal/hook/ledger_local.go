package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/zkagent/zkagent/internal/files"
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
	data, err := files.ReadNamed(l.path, files.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read ledger: %w", err)
	}
	r, err := decodeRecord(data)
	if err != nil {
		return record{}, fmt.Errorf("%s: %w", l.path, err)
	}
	return r, nil
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
	return files.Save(l.path, data)
}

// ordered: a ZooKeeper that was replaced by an empty one counts its zxids from
// the start again, and the state directory stays.
func (*localLedger) ordered() bool { return false }
