package hook

import (
	"context"
	"fmt"

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
	var r record
	if err := files.LoadJSON(l.path, &r); err != nil {
		return record{}, fmt.Errorf("read ledger: %w", err)
	}
	return r, nil
}

func (l *localLedger) store(_ context.Context, r record) error {
	if l.path == "" {
		l.mem = r.clone()
		return nil
	}
	return files.SaveJSON(l.path, r)
}

// ordered: a ZooKeeper that was replaced by an empty one counts its zxids from
// the start again, and the state directory stays.
func (*localLedger) ordered() bool { return false }
