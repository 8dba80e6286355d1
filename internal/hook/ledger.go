package hook

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"
)

// States of a ledger entry.
const (
	stateStarted = "started"
	stateDone    = "done"
	stateFailed  = "failed"
)

// errConflict says that somebody else wrote the ledger in between.
var errConflict = errors.New("ledger was changed by another")

// errNotLeader says that the candidate's znode is gone: the write was refused.
var errNotLeader = errors.New("not the leader any more")

// entry is what the ledger knows about one run.
type entry struct {
	Zxid  int64     `json:"zxid,omitempty"` // of a change
	Slot  time.Time `json:"at,omitzero"`    // of a schedule
	State string    `json:"state"`
	Term  int64     `json:"term,omitempty"`
	Time  time.Time `json:"time"`
	Run   string    `json:"run,omitempty"` // names this run, for lost replies
}

// record is the ledger of one hook: which change, slot and term were last
// done. PROTOCOLS: it lives beside the election's path, so that whoever leads
// next neither loses nor repeats work.
type record struct {
	Changes map[string]entry `json:"changes,omitempty"`
	Slot    *entry           `json:"slot,omitempty"`
	Elected *entry           `json:"elected,omitempty"`
}

// clone copies a record, so that a refused write leaves the old one.
func (r record) clone() record {
	c := record{Changes: make(map[string]entry, len(r.Changes)+1)}
	maps.Copy(c.Changes, r.Changes)
	if r.Slot != nil {
		s := *r.Slot
		c.Slot = &s
	}
	if r.Elected != nil {
		e := *r.Elected
		c.Elected = &e
	}
	return c
}

// ledger remembers what a hook has done, over terms and restarts.
type ledger interface {
	// load reads the record; an empty one when there is none.
	load(ctx context.Context) (record, error)
	// store writes it if nobody else did since the last load or store.
	store(ctx context.Context, r record) error
	// newer reports whether a change z is one that was not yet run, when the
	// newest one that was is known.
	newer(z, known int64) bool
}

// decodeRecord reads a record; garbage is an error, never an empty record:
// an empty one would run everything again.
func decodeRecord(data []byte) (record, error) {
	if len(data) == 0 {
		return record{}, nil
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, errors.New("ledger is not valid JSON")
	}
	return r, nil
}
