package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// A host's part in rollouts.
//
// One goroutine looks at the version in use, the call of the shard, the host's own
// record and maintenance, and acts on the matching row of the table. Long
// work (the check of a version, a turn) runs in a second goroutine. Every write
// checks its assumptions. When a write fails, the host reads the gate and its own
// record again and takes the row that matches then.
//
//	own record     and                     write                             then
//	none           voting                  check; commit, or abort + refused
//	none           maintenance             skipped
//	none           open, halted            wait
//	commit, wait   granted by coordinator  started, if the gate is the granted one
//	started        the work is done        done, failed (and halted)
//	started        another life            started again, at most three; or back, failed
//	failed         made wait               (as wait)
//	skipped        able again              wait, or a vote
//
// The version to use, first match: (1) In an open rollout, the new version if the
// own record is done or started, else the version that the record names as in use
// before. (2) Without a record, the version from the host's records in the rollouts
// that this one replaces. (3) The version that ready names, unless the host's
// record says that it failed here.

// maxAttempts is how many processes of one host may start with a version. A version
// may kill the agent, and a supervisor starts it again. After that many the host
// gives the version up.
const maxAttempts = 3

// host is one host in one session.
type host struct {
	p     *Participant
	s     *session.Session
	calls chan shardCall

	ready     *view.Tree // latest; nil: none yet
	readyZxid int64      // of the znode, 0 if unknown
	followed  *view.Tree // the tree of ready that the host last followed outside a rollout

	shard *session.Watch // nil: read the shard
	known bool           // the shard was read in this session: a later call is new
	call  *shardCall     // latest
	act   *part          // the rollout that the host takes part in; nil: none
	away  string         // why the host is in maintenance; each move reads it once
	job   *job           // work in the second goroutine; nil: none
	races int
}

// part is one rollout as the host sees it.
type part struct {
	shardCall
	called time.Time   // when the call came; zero: before this session
	looked bool        // own and gate are known
	mine   bool        // since own is known, this session owns the subscription
	own    *HostRecord // nil: none
	ownV   int32
	watch  *session.Watch // of own; nil: none
	moved  bool           // own has changed: read it again
	read   bool           // gate was read; else only its version and state are known
	gate   Gate
	gateV  int32
	gateAt time.Time // when it was written, if it was read
	begun  bool      // this session started or continued the turn
	caught bool      // the version in use is the one that the rollout expects
}

func (a *part) state() string {
	if a.own == nil {
		return ""
	}
	return a.own.State
}

// job is work in the second goroutine: a vote or a turn.
type job struct {
	kind    string
	rollout string
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // valid when done is closed, as the next fields
	unread  bool  // the version could not be read
	noticed bool  // by wait
	files   []FileChange
}

const (
	jobVote = "vote"
	jobUse  = "use"
	jobBack = "back"
)

func (j *job) over() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

func (h *host) run(ctx context.Context) error {
	defer func() {
		h.stopJob()
		h.shard.Stop()
		if h.act != nil {
			h.act.watch.Stop()
		}
	}()
	const first, most = 200 * time.Millisecond, 5 * time.Second
	back := first
	for {
		_, maintained := h.p.cfg.Maintenance() // before the step that looks at it
		_, owned := h.p.cfg.Owned()
		again := time.Duration(0)
		err := h.step(ctx)
		switch {
		case ctx.Err() != nil || h.s.Context().Err() != nil:
			return h.lastWords(ctx)
		case errors.Is(err, ErrStopping):
			return err
		case err != nil:
			h.p.log.Warn("rollout duty failed", "rollout", cmp.Or(h.act, &part{}).Rollout, "err", err)
			again, back = back, min(2*back, most)
		default:
			back = first
		}
		if err := h.wait(ctx, again, maintained, owned); err != nil {
			return h.lastWords(ctx)
		}
	}
}

// stopJob ends the job. The next session continues an interrupted turn.
func (h *host) stopJob() {
	if h.job == nil {
		return
	}
	h.job.cancel()
	<-h.job.done
	if h.job.kind != jobVote {
		h.p.inUse = 0 // the version in use is unknown now
	}
	h.job = nil
}

// lastWords records a turn that ended while the process stops. It waits for
// ZooKeeper for one session timeout at most.
func (h *host) lastWords(ctx context.Context) error {
	if h.job != nil && h.job.kind != jobVote && h.s.Context().Err() == nil {
		<-h.job.done // the host sees for itself that the process stops
	}
	if h.act == nil || h.s.Context().Err() != nil {
		return context.Cause(h.s.Context())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.s.Timeout())
	defer cancel()
	if h.takeResult() == nil && h.p.ended != nil && (h.act.looked || h.look(last) == nil) {
		_, _ = h.record(last)
	}
	return nil
}

func (h *host) wait(ctx context.Context, again time.Duration, maintained, owned <-chan struct{}) error {
	var tick <-chan time.Time
	if again > 0 {
		t := time.NewTimer(again)
		defer t.Stop()
		tick = t.C
	}
	var done, record <-chan struct{}
	if h.job != nil && !h.job.noticed {
		done = h.job.done
	}
	if h.act != nil {
		record = h.act.watch.C()
	}
	select {
	case tree := <-h.p.offers:
		if h.ready != nil && h.ready.Generation == tree.Generation && h.ready.Digest != tree.Digest {
			h.p.inUse = 0 // a tree that was deleted and published again has the numbers of the first one
		}
		h.ready, h.readyZxid, h.followed = tree, tree.Last, nil
	case <-h.shard.C():
	case <-record: // once: the step may have to wait before it reads the record
		h.act.watch.Stop()
		h.act.watch, h.act.moved = nil, true
	case <-done: // once, likewise
		h.job.noticed = true
	case <-maintained:
		h.followed = nil
	case <-owned:
	case <-tick:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.s.Done():
		return context.Cause(h.s.Context())
	}
	return nil
}

// step repeats move until nothing is left to do now.
func (h *host) step(ctx context.Context) error {
	if h.ready == nil {
		return nil
	}
	if err := h.takeResult(); err != nil {
		return err
	}
	if err := h.readShard(ctx); err != nil {
		return err
	}
	h.adopt()
	for ctx.Err() == nil && h.s.Context().Err() == nil {
		again, err := h.move(ctx)
		if err != nil || !again {
			return err
		}
	}
	return nil
}

func (h *host) readShard(ctx context.Context) error {
	if h.shard != nil && !h.shard.Fired() {
		return nil
	}
	h.shard.Stop()
	h.shard = nil
	path := shardPath(h.p.cfg.Root, Shard(h.p.cfg.Agent))
	data, _, watch, err := h.s.GetW(ctx, path)
	if errors.Is(err, session.ErrNoNode) {
		_, _, watch, err = h.s.ExistsW(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("read the call: %w", err)
	}
	h.shard = watch
	fresh := h.known
	h.known = true
	if len(data) == 0 {
		return nil
	}
	call, err := decode[shardCall](path, data)
	if err != nil {
		return err
	}
	if call.Format != callFormat {
		return fmt.Errorf("%s: call has format %d, this program knows %d: %w", path, call.Format, callFormat, config.ErrFormat)
	}
	if h.call != nil && h.call.Rollout == call.Rollout {
		return nil
	}
	if !fresh {
		call.Elect = 0 // it is late: others are candidates already
	}
	h.call = &call
	replace(h.calls, call)
	h.call.State = map[bool]string{true: call.State}[fresh] // else it is to be read
	return nil
}

// adopt switches to the rollout of the latest call, unless a turn is under way.
func (h *host) adopt() {
	if h.call == nil || h.act != nil && h.act.Rollout == h.call.Rollout {
		return
	}
	if h.act != nil {
		if h.p.ended != nil || h.job != nil && h.job.kind != jobVote {
			return
		}
		h.stopJob()
		h.act.watch.Stop()
	}
	// A call that comes while we look is new: we have no record yet.
	h.act = &part{shardCall: *h.call, looked: h.call.State != "", gate: Gate{State: h.call.State}, gateV: h.call.Gate}
	if h.act.looked {
		h.act.called = time.Now()
		h.act.mine, _ = h.p.cfg.Owned()
	}
	h.followed = nil
}

func (h *host) takeResult() error {
	if h.job == nil || h.job.kind == jobVote || !h.job.over() {
		return nil
	}
	if h.s.Context().Err() != nil {
		return nil //nolint:nilerr // the session's end has ended it
	}
	j := h.job
	h.job = nil
	if errors.Is(j.err, ErrStopping) {
		h.p.inUse = 0
		return j.err
	}
	r := *h.act.own
	r.Gate, r.Lost = 0, false
	if j.kind == jobUse && j.err == nil {
		r.State, h.p.inUse = HostDone, h.act.Proposal.Version
	} else {
		r.State, h.p.inUse = HostFailed, r.From
		if j.kind == jobUse {
			r.Error = clip(j.err.Error())
		}
	}
	h.p.ended = &ending{j.rollout, r}
	return nil
}

// move does the next thing. It returns true when more may be left to do.
func (h *host) move(ctx context.Context) (bool, error) {
	a := h.act
	if h.job != nil && h.job.kind != jobVote {
		return false, nil // a turn is finished before anything else
	}
	if a != nil && h.p.ended != nil && h.p.ended.rollout == a.Rollout {
		if !a.looked {
			return true, h.look(ctx)
		}
		again, err := h.record(ctx)
		h.adopt()
		return again, err
	}
	h.p.ended = nil
	h.away, _ = h.p.cfg.Maintenance()
	mine, _ := h.p.cfg.Owned()
	if a != nil && !mine {
		a.mine = false
	}
	if !mine && h.p.inUse != 0 {
		h.stopJob()
		return false, nil
	}
	if a == nil {
		return false, h.follow(ctx)
	}
	if current, err := h.current(ctx); err != nil || !current {
		return false, err
	}
	if h.readyZxid > a.Proposal.Ready.Mzxid || a.looked && a.gate.State == GateClosed && a.gate.Result != ResultReplaced { // a replaced one waits for the next call
		h.stopJob()
		return false, h.follow(ctx)
	}
	if a.moved {
		return true, h.readOwn(ctx, false)
	}
	if !a.looked {
		return true, h.look(ctx)
	}
	if err := h.catchUp(ctx); err != nil {
		return false, err
	}
	mine, _ = h.p.cfg.Owned()
	switch {
	case !mine:
		return false, nil
	case a.own != nil && !a.mine:
		// Another agent with this id may have written the record since we read it.
		a.looked = false
		return true, nil
	}
	return h.play(ctx)
}

// current reports whether this host has seen the ready that the rollout builds on.
func (h *host) current(ctx context.Context) (bool, error) {
	if h.readyZxid >= h.act.Proposal.Ready.Mzxid {
		return true, nil
	}
	data, stat, err := h.s.Get(ctx, trees.ReadyPath(h.p.cfg.Root))
	if err != nil {
		return false, fmt.Errorf("read ready: %w", err)
	}
	r, _, err := trees.ParseReady(data)
	if err != nil || r.Version != h.ready.Generation {
		return false, err // it is on its way
	}
	h.readyZxid = stat.Mzxid
	return h.readyZxid >= h.act.Proposal.Ready.Mzxid, nil
}

func (h *host) look(ctx context.Context) error {
	a := h.act
	root := h.p.cfg.Root
	a.mine, _ = h.p.cfg.Owned()
	results, err := h.s.GetMany(ctx, []string{gatePath(root, a.Rollout), recordPath(root, a.Rollout, h.p.cfg.Agent)})
	if err != nil {
		return fmt.Errorf("look: %w", err)
	}
	a.gate, a.gateV, a.own, a.ownV = Gate{State: GateClosed}, 0, nil, 0
	for i, r := range results {
		switch {
		case r.Err != nil:
			err = ignore(r.Err, session.ErrNoNode)
		case i == 0:
			a.gate, err = decode[Gate]("gate", r.Data)
			a.gateV, a.gateAt = r.Stat.Version, time.UnixMilli(r.Stat.Mtime)
		default:
			a.own, a.ownV = &HostRecord{}, r.Stat.Version
			*a.own, err = decode[HostRecord]("record", r.Data)
		}
		if err != nil {
			return fmt.Errorf("look: %w", err)
		}
	}
	a.looked, a.read, a.moved = true, true, false
	a.caught = false // the version that we expected may be outdated
	return nil
}

func (h *host) readOwn(ctx context.Context, watch bool) error {
	a := h.act
	path := recordPath(h.p.cfg.Root, a.Rollout, h.p.cfg.Agent)
	a.watch.Stop()
	a.watch, a.moved = nil, false
	var data []byte
	var stat session.Stat
	var err error
	if watch {
		data, stat, a.watch, err = h.s.GetW(ctx, path)
	} else {
		data, stat, err = h.s.Get(ctx, path)
	}
	if errors.Is(err, session.ErrNoNode) {
		a.looked = false // compacted: it was closed
		return nil
	}
	if err != nil {
		return fmt.Errorf("read own record: %w", err)
	}
	own, err := decode[HostRecord](path, data)
	a.own, a.ownV = &own, stat.Version
	return err
}

// await watches the own record until another process changes it.
func (h *host) await(ctx context.Context) (bool, error) {
	a := h.act
	if a.watch != nil {
		return false, nil
	}
	before := a.ownV
	err := h.readOwn(ctx, true)
	return err == nil && (!a.looked || a.ownV != before), err
}
