package hook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
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

type entry struct {
	Zxid   int64     `json:"zxid,omitempty"`   // of a change
	Digest string    `json:"digest,omitempty"` // of the content, for reloads of the files; previous versions wrote none
	Slot   time.Time `json:"at,omitzero"`      // of a schedule
	State  string    `json:"state"`
	Term   int64     `json:"term,omitempty"`
	Time   time.Time `json:"time"`
	Run    string    `json:"run,omitempty"` // names this run, for lost replies
}

// standing compares the state of a source with what the ledger says.
type standing int

const (
	current standing = iota // the ledger is about this content
	changed                 // the content is another one
	behind                  // the ledger is about a newer state than this one
)

// compare orders by zxid and decides by digest. seen is the largest zxid that
// this process has seen of the source: a state that is older than the ledger's
// is a way back if the process has seen the ledger's state, and else a view that
// lags. ordered is false where zxids may count from the start again.
func (e entry) compare(zxid int64, digest string, seen int64, ordered bool) standing {
	switch {
	case e.Digest == digest, e.Digest == "" && e.Zxid == zxid:
		return current
	case ordered && zxid < e.Zxid && seen < e.Zxid:
		return behind
	}
	return changed
}

// record is the ledger of one hook: which change, slot and term were last
// done. PROTOCOLS: it lives beside the election's path, so that the next leader
// loses no work and repeats none.
type record struct {
	Changes map[string]entry `json:"changes,omitempty"`
	Slot    *entry           `json:"slot,omitempty"`
	Elected *entry           `json:"elected,omitempty"`
}

// clone copies a record, so that a refused write leaves the old one. What Slot and Elected
// point to does not change.
func (r record) clone() record {
	c := record{Changes: make(map[string]entry, len(r.Changes)+1), Slot: r.Slot, Elected: r.Elected}
	maps.Copy(c.Changes, r.Changes)
	return c
}

// ledger remembers what a hook has done, over terms and restarts.
type ledger interface {
	// load reads the record; an empty one when there is none.
	load(ctx context.Context) (record, error)
	// store writes it, unless another process wrote since the last load or store.
	store(ctx context.Context, r record) error
	// ordered reports whether a smaller zxid is an older state.
	ordered() bool
}

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

// contentOf is a digest of the accepted content of a source: what a template can
// render of it. Two states with the same content are no change, whatever their
// zxids: a member that registered again, a key that was set to its old value, a
// tree that was published again. Members that a guard holds are members.
//
// Texts are quoted, so that no two lists of values look the same.
func contentOf(u view.Update) string {
	d := sha256.New()
	switch v := u.(type) {
	case *view.Tree:
		v.Walk("", func(path string, k view.Key) bool {
			_, _ = fmt.Fprintf(d, "%q %d\n%s", path, len(k.Value), k.Value)
			return true
		})
	case *view.Group:
		digestMembers(d, v)
	case *view.Groups:
		for _, g := range v.Groups {
			_, _ = fmt.Fprintf(d, "%q\n", g.Name)
			digestMembers(d, g)
		}
	case *view.Leader:
		_, _ = fmt.Fprintf(d, "%q %d\n", v.ID, v.Term)
	}
	return hex.EncodeToString(d.Sum(nil)[:16])
}

func digestMembers(d io.Writer, g *view.Group) {
	for i := range g.Members {
		m := &g.Members[i]
		texts := []string{m.ID, m.Node, m.Name, m.Host, m.Status}
		for i := range texts {
			if texts[i] == m.Znode {
				texts[i] = "" // it would be another name after the next registration.
			}
		}
		_, _ = fmt.Fprintf(d, "%q %d %d %q %q", texts, m.Port, m.Weight, m.Labels, m.RawLabels)
		for _, name := range slices.Sorted(maps.Keys(m.Ports)) {
			_, _ = fmt.Fprintf(d, " %q %d", name, m.Ports[name])
		}
		_, _ = fmt.Fprintln(d)
	}
}

// zkLedger is the ledger of a leader-only hook: one persistent znode at
// <election path>-ledger/<hook>. Every write is one multi with a check of the
// leader's own znode, so that a leader which was deposed without knowing it
// cannot write.
type zkLedger struct {
	s     *session.Session
	guard session.Op // check of the candidate's znode
	path  string

	version int32 // of the znode as last seen; -1: there is none
}

func (l *zkLedger) load(ctx context.Context) (record, error) {
	data, stat, err := l.s.Get(ctx, l.path)
	if errors.Is(err, session.ErrNoNode) {
		l.version = -1
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read ledger: %w", err)
	}
	l.version = stat.Version
	var r record
	if len(data) > 0 && json.Unmarshal(data, &r) != nil { // As an empty record it would run everything again.
		return record{}, errors.New("ledger is not valid JSON")
	}
	return r, nil
}

func (l *zkLedger) store(ctx context.Context, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	for {
		err := l.write(ctx, data)
		if !errors.Is(err, session.ErrUnknown) {
			return err
		}
		applied, err := l.applied(ctx, data)
		if err != nil || applied {
			return err
		}
	}
}

// write is one attempt. The parents of the first record are created only when they
// turn out to be missing: a failover pays for no request that it does not need.
func (l *zkLedger) write(ctx context.Context, data []byte) error {
	err := l.multi(ctx, data)
	m, failed := errors.AsType[*session.MultiError](err)
	if failed && m.Index == 1 && l.version < 0 && errors.Is(m.Err, session.ErrNoNode) {
		if err = l.s.CreateParents(ctx, l.path); err != nil {
			return fmt.Errorf("create parents of ledger: %w", err)
		}
		err = l.multi(ctx, data)
		m, failed = errors.AsType[*session.MultiError](err)
	}
	switch {
	case err == nil:
		l.version++
		return nil
	case failed && m.Index == 0 && errors.Is(m.Err, session.ErrNoNode):
		return errNotLeader
	case failed && (errors.Is(m.Err, session.ErrBadVersion) || errors.Is(m.Err, session.ErrNodeExists) || errors.Is(m.Err, session.ErrNoNode)):
		return errConflict
	}
	return fmt.Errorf("write ledger: %w", err)
}

// multi writes the record if the candidate's znode exists and the record is still
// the one that was read.
func (l *zkLedger) multi(ctx context.Context, data []byte) error {
	op := session.SetOp(l.path, data, l.version)
	if l.version < 0 {
		op = session.CreateOp(l.path, data, session.Persistent)
	}
	_, err := l.s.Multi(ctx, l.guard, op)
	return err
}

// applied finds out what became of a write whose reply was lost. A run names
// itself in what it writes, so equal bytes are ours.
func (l *zkLedger) applied(ctx context.Context, data []byte) (bool, error) {
	if err := l.s.Sync(ctx, l.path); err != nil && !errors.Is(err, session.ErrNoNode) {
		return false, fmt.Errorf("sync ledger: %w", err)
	}
	got, stat, err := l.s.Get(ctx, l.path)
	switch {
	case errors.Is(err, session.ErrNoNode) && l.version < 0:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read ledger: %w", err)
	case bytes.Equal(got, data):
		l.version = stat.Version
		return true, nil
	case stat.Version == l.version:
		return false, nil
	}
	return false, errConflict
}

// ordered: the ledger stands where the states come from.
func (*zkLedger) ordered() bool { return true }
