package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// play acts on the matching row of the table. It returns true to look again.
func (h *host) play(ctx context.Context) (bool, error) {
	a := h.act
	skipped := HostRecord{State: HostSkipped, From: h.p.inUse, Error: clip("maintenance: " + h.away)}
	if state := a.state(); h.away != "" && (state == HostCommit || state == HostWait || state == HostGranted) {
		skipped.From = a.own.From
		return h.put(ctx, skipped)
	}
	switch a.state() {
	case "":
		switch {
		case a.gate.State == GateRefused || a.gate.State == GateClosed:
			h.stopJob()
			return false, nil
		case h.away != "":
			h.stopJob()
			return h.put(ctx, skipped, h.checkGate())
		case a.gate.State == GateVoting:
			return h.vote(ctx)
		}
		return h.put(ctx, HostRecord{State: HostWait, From: h.p.inUse}, h.checkGate())
	case HostCommit, HostWait:
		if a.Proposal.Dry {
			return false, nil
		}
		return h.await(ctx)
	case HostGranted:
		return h.start(ctx)
	case HostStarted:
		return h.goOn(ctx)
	case HostFailed:
		if h.p.inUse != a.own.From {
			if err := h.show(ctx, a.own.From); err != nil {
				return false, err
			}
		}
		return h.await(ctx)
	case HostSkipped:
		return h.comeBack(ctx)
	}
	return false, nil // abort, done
}

// checkGate makes a write fail when the gate has changed since it was read.
func (h *host) checkGate() session.Op {
	return session.CheckOp(gatePath(h.p.cfg.Root, h.act.Rollout), h.act.gateV)
}

func (h *host) setGate(g Gate) session.Op {
	a := h.act
	return session.SetOp(gatePath(h.p.cfg.Root, a.Rollout), encode(g.after(a.gate, a.gateAt)), a.gateV)
}

// put writes the own record in one transaction with other operations.
func (h *host) put(ctx context.Context, r HostRecord, with ...session.Op) (bool, error) {
	a := h.act
	path := recordPath(h.p.cfg.Root, a.Rollout, h.p.cfg.Agent)
	r.Version = a.Proposal.Version
	op, version := session.CreateOp(path, encode(r), session.Persistent), int32(0)
	if a.own != nil {
		op, version = session.SetOp(path, encode(r), a.ownV), a.ownV+1
	}
	a.watch.Stop() // do not react to our own write
	a.watch = nil
	results, err := h.s.Multi(ctx, append(with, op)...)
	if err != nil && !raced(err) {
		return false, fmt.Errorf("write %s: %w", r.State, err)
	}
	if err == nil {
		log := h.p.log.With("rollout", a.Rollout, "version", r.Version, "state", r.State, "reason", r.Error, "zxid", results[len(results)-1].Stat.Mzxid)
		switch r.State {
		case HostStarted:
			log.Info("rollout turn started")
		case HostDone, HostFailed:
			log.Info("rollout turn finished")
		default:
			log.Info("rollout record written")
		}
		h.races = 0
		a.own, a.ownV = &r, version
		return true, nil
	}
	if errors.Is(err, session.ErrUnknown) {
		if err := h.s.Sync(ctx, path); err != nil {
			return false, err
		}
	}
	a.looked, a.begun = false, a.begun && a.state() == HostStarted
	if h.races++; h.races%8 == 0 {
		return false, fmt.Errorf("write %s: lost %d races: %w", r.State, h.races, err)
	}
	return true, nil
}

func (h *host) vote(ctx context.Context) (bool, error) {
	a := h.act
	if h.job == nil {
		h.beside(ctx, jobVote, func(ctx context.Context, j *job) error {
			tree, err := h.p.cfg.Tree(ctx, h.s, versionOf(a.Proposal))
			if err != nil {
				j.unread = true
				return fmt.Errorf("read version %d: %w", a.Proposal.Version, err)
			}
			err = h.judge(ctx, a, tree, j)
			if err == nil || errors.Is(err, ErrCheckNotRun) || a.Proposal.Dry { // a refusal ends a rollout at once
				pace.Sleep(ctx, h.voteDelay(a))
			}
			return err
		})
	}
	if !h.job.over() {
		return false, nil
	}
	j := h.job
	if j.err != nil && !a.read && a.gateV > 0 {
		return true, h.look(ctx) // a refusal keeps the past of the gate, which a call does not carry
	}
	h.job = nil
	if j.unread && !trees.Unusable(j.err) {
		return false, j.err // a lost connection is no vote
	}
	r := HostRecord{State: HostCommit, From: h.p.inUse, Files: j.files, Unchecked: errors.Is(j.err, ErrCheckNotRun)}
	r.Files, r.More = boundFiles(r.Files)
	if r.Unchecked && a.Proposal.Dry {
		r.Error = clip(j.err.Error())
	}
	if j.err == nil || r.Unchecked {
		return h.put(ctx, r, h.checkGate())
	}
	r.State, r.Error = HostAbort, clip(j.err.Error())
	if a.Proposal.Dry {
		return h.put(ctx, r, h.checkGate())
	}
	if a.gate.State == GateRefused {
		return h.put(ctx, r)
	}
	refused := a.gate
	refused.State, refused.Host, refused.Reason, refused.By = GateRefused, h.p.cfg.Agent, r.Error, ""
	return h.put(ctx, r, h.setGate(refused))
}

// votesASecond is how many votes of a large fleet arrive in a second. All hosts are
// called together and check the version for about as long, so without a delay all
// votes would meet at the leader, which commits a few thousand writes a second.
const votesASecond = 5000

// VoteWindow returns how long the hosts of a fleet spread their votes. A
// fleet of up to 1,000 hosts votes at once.
func VoteWindow(hosts int) time.Duration {
	return time.Duration(max(0, hosts-1000)) * time.Second / votesASecond
}

func (h *host) judge(ctx context.Context, a *part, tree *view.Tree, j *job) error {
	planner, ok := h.p.cfg.Host.(Planner)
	if !a.Proposal.Dry || !ok {
		return h.p.cfg.Host.Vote(ctx, tree)
	}
	sample := draw(drawSample, a.Rollout, h.p.cfg.Agent)*float64(a.Proposal.Hosts) < maxSamples
	var err error
	j.files, err = planner.Plan(ctx, tree, sample)
	return err
}

// voteDelay returns how long the host keeps its vote: a random part of the window. A
// host votes within half of the vote's timeout, if its check leaves the time. A host
// whose call is not new votes at once, because the time may be nearly up.
func (h *host) voteDelay(a *part) time.Duration {
	most := min(h.p.window(a.Proposal.Hosts), time.Duration(a.Proposal.Strategy.VoteTimeout)/2-time.Since(a.called))
	if a.called.IsZero() || most <= 0 {
		return 0
	}
	return rand.N(most) //nolint:gosec // the moment is no secret
}

func versionOf(p Proposal) Version { return Version{p.Version, p.Digest, p.Delta} }

// beside runs work in a second goroutine. The work ends with the session or by
// stopJob. The end of ctx alone does not end a turn.
func (h *host) beside(ctx context.Context, kind string, do func(context.Context, *job) error) {
	if kind != jobVote {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(h.s.Context(), cancel)
	j := &job{kind: kind, rollout: h.act.Rollout, done: make(chan struct{})}
	j.cancel = func() { stop(); cancel() }
	h.job = j
	go func() {
		defer close(j.done)
		defer j.cancel()
		j.err = do(ctx, j)
	}()
}

// start begins a granted turn if the gate is still the one of the grant.
func (h *host) start(ctx context.Context) (bool, error) {
	a := h.act
	if own := a.own; !a.read || own.Gate > a.gateV {
		a.read, a.gateV = false, own.Gate // the coordinator saw a newer gate
	} else if !a.gate.runs() {
		return h.await(ctx)
	}
	r := *a.own
	r.State, r.Life, r.Attempts, r.Gate = HostStarted, h.p.cfg.Life, 1, 0
	again, err := h.put(ctx, r, h.checkGate())
	if err == nil && a.looked {
		a.begun = true
	}
	return again, err
}

// goOn continues a started turn, which a previous session or process may have
// started. It gives the turn up if the rollout has halted meanwhile or the agent
// died too often in it.
func (h *host) goOn(ctx context.Context) (bool, error) {
	a, own := h.act, *h.act.own
	if a.begun {
		ready := h.ready // a copy: the loop changes its own meanwhile
		h.beside(ctx, jobUse, func(ctx context.Context, _ *job) error {
			tree, err := h.p.cfg.Tree(ctx, h.s, versionOf(a.Proposal))
			if err != nil {
				return fmt.Errorf("read version %d: %w", a.Proposal.Version, err)
			}
			from, err := h.tree(ctx, ready, a, own.From)
			if err != nil {
				return fmt.Errorf("read version %d, to go back to: %w", own.From, err)
			}
			return h.p.cfg.Host.Use(ctx, tree, from)
		})
		return false, nil
	}
	if !a.read {
		return true, h.look(ctx)
	}
	next := own
	next.Lost = false
	switch {
	case a.gate.State != GateOpen:
		return false, h.giveUp(ctx, "had not finished when the rollout halted: "+a.gate.Reason)
	case own.Life == h.p.cfg.Life && !own.Lost:
		a.begun = true
		return true, nil
	case own.Life == h.p.cfg.Life:
	case own.Attempts >= maxAttempts:
		return false, h.giveUp(ctx, fmt.Sprintf("the agent ended %d times in the middle of it", own.Attempts))
	default:
		next.Life, next.Attempts = h.p.cfg.Life, own.Attempts+1
	}
	again, err := h.put(ctx, next, h.checkGate())
	a.begun = err == nil && a.looked
	return again, err
}

// giveUp goes back to the version before, and then records the failure.
func (h *host) giveUp(ctx context.Context, why string) error {
	a := h.act
	from, err := h.tree(ctx, h.ready, a, a.own.From)
	if err != nil {
		return err
	}
	h.p.log.Warn("rollout turn given up", "rollout", a.Rollout, "version", a.Proposal.Version, "reason", why)
	a.own.Error = clip(why)
	h.beside(ctx, jobBack, func(ctx context.Context, _ *job) error { return h.p.cfg.Host.Back(ctx, from) })
	return nil
}

// record writes the result of the turn. The only failure allowed halts the rollout, too.
func (h *host) record(ctx context.Context) (bool, error) {
	a, r := h.act, h.p.ended.record
	if a.looked && a.state() != HostStarted {
		h.p.ended = nil // recorded before, its reply was lost; or it is over
		return true, nil
	}
	var with []session.Op
	if r.State == HostFailed && a.Proposal.Strategy.MaxFailures == 1 {
		if !a.read {
			return true, h.look(ctx)
		}
		if a.gate.State == GateOpen {
			halted := a.gate
			halted.State, halted.Host, halted.Reason, halted.By = GateHalted, h.p.cfg.Agent, r.Error, ""
			with = append(with, h.setGate(halted))
		}
	}
	r.Round = a.own.Round // an operator's retry may have moved it
	again, err := h.put(ctx, r, with...)
	if err == nil && a.looked {
		h.p.ended, a.begun = nil, false
		a.read = a.read && len(with) == 0
	}
	return again, err
}

// Bounds on the report of a vote in a dry run.
const (
	maxFiles     = 32
	maxFileBytes = 4 << 10
	maxDiffBytes = 16 << 10
	maxSamples   = 20
)

// boundFiles drops files beyond the bounds and returns how many it dropped.
func boundFiles(files []FileChange) ([]FileChange, int) {
	size, diffs := 0, 0
	for i := range files {
		diff := files[i].Diff
		files[i].Diff = ""
		size += len(encode(files[i]))
		if i == maxFiles || size > maxFileBytes {
			return files[:i], len(files) - i
		}
		if diffs += len(diff); diffs <= maxDiffBytes {
			files[i].Diff = diff
		}
	}
	return files, 0
}

// comeBack ends the maintenance in the record: the host votes, or waits for its turn.
func (h *host) comeBack(ctx context.Context) (bool, error) {
	a := h.act
	if h.away != "" || a.Proposal.Dry && a.gate.State != GateVoting {
		h.stopJob()
		return false, nil
	}
	if !a.read {
		return true, h.look(ctx)
	}
	switch a.gate.State {
	case GateVoting:
		return h.vote(ctx)
	case GateOpen, GateHalted:
		again, err := h.put(ctx, HostRecord{State: HostWait, From: h.p.inUse}, h.checkGate())
		if !a.looked {
			a.read = false
		}
		return again, err
	}
	return false, nil
}

// catchUp puts the version to use into use. A process whose record another agent with the
// same id wrote uses what that record names.
func (h *host) catchUp(ctx context.Context) error {
	a := h.act
	free := a.own == nil || a.state() == HostSkipped
	switch {
	case a.state() == HostStarted:
		return nil
	case a.state() == HostDone && a.own.Life != h.p.cfg.Life && h.p.inUse != a.Proposal.Version && h.away == "":
		// Another process with this id had the turn and is gone. The version that
		// it put into use is the host's version.
	case h.away != "" && h.p.inUse != 0:
		a.caught = false
		return nil
	case a.caught && h.p.inUse != 0 || free && h.p.inUse == h.ready.Generation && len(a.Proposal.Replaces) == 0:
		return nil
	}
	want, err := h.wanted(ctx)
	if err != nil {
		return err
	}
	if want != h.p.inUse {
		if err := h.show(ctx, want); err != nil {
			return err
		}
	}
	// Not before it is in use: a version that cannot be read now is tried again. And
	// not for a host in maintenance, which keeps a version that it may have missed.
	a.caught = h.away == ""
	return nil
}

func (h *host) wanted(ctx context.Context) (int64, error) {
	a := h.act
	switch {
	case a.state() == HostDone:
		return a.Proposal.Version, nil
	case a.own != nil && (a.state() != HostSkipped || h.away != ""):
		return a.own.From, nil
	}
	version, err := h.replacedVersion(ctx)
	if err != nil || version != 0 {
		return version, err
	}
	return h.readyVersion(ctx)
}

// readyVersion returns the version to use when no rollout is open: the one that
// ready names, unless the host has failed with it.
func (h *host) readyVersion(ctx context.Context) (int64, error) {
	var own HostRecord
	switch a, rollout := h.act, h.ready.Rollout; {
	case rollout == "":
	case a == nil || a.Rollout != rollout || !a.looked:
		var err error
		own, _, err = readRecord[HostRecord](ctx, h.s, recordPath(h.p.cfg.Root, rollout, h.p.cfg.Agent))
		if ignore(err, session.ErrNoNode) != nil {
			return 0, fmt.Errorf("read own record: %w", err)
		}
	case a.own != nil:
		own = *a.own
	}
	switch known := own.Version == h.ready.Generation; {
	case known && own.State == HostFailed:
		return own.From, nil
	case h.away != "" && h.p.cfg.InUse != 0 && (!known || own.State != HostDone):
		return h.p.cfg.InUse, nil
	}
	return h.ready.Generation, nil
}

// replacedVersion returns the version from the host's records in the rollouts that
// this one replaces; 0: no record.
func (h *host) replacedVersion(ctx context.Context) (int64, error) {
	for chunk := range slices.Chunk(h.act.Proposal.Replaces, 16) {
		paths := lists.Map(chunk, func(rollout string) string { return recordPath(h.p.cfg.Root, rollout, h.p.cfg.Agent) })
		results, err := h.s.GetMany(ctx, paths)
		for i, r := range results {
			var own HostRecord
			if err == nil && r.Err == nil {
				own, r.Err = decode[HostRecord](paths[i], r.Data)
			}
			switch err = cmp.Or(err, ignore(r.Err, session.ErrNoNode)); {
			case err != nil || r.Err != nil:
			case own.State == HostDone:
				return own.Version, nil
			case own.State != HostSkipped || h.away != "": // else as without a record: in maintenance the host may have missed a version
				return own.From, nil
			}
		}
		if err != nil {
			return 0, fmt.Errorf("read own records: %w", err)
		}
	}
	return 0, nil
}

// follow uses the version that ready names when no rollout is open, unless the host
// has failed with it. A host in maintenance keeps its version.
func (h *host) follow(ctx context.Context) error {
	if h.followed == h.ready {
		return nil
	}
	if h.away != "" && h.p.inUse != 0 {
		return nil
	}
	want, err := h.readyVersion(ctx)
	if err != nil {
		return err
	}
	if err := h.show(ctx, want); err != nil {
		return err
	}
	h.followed = h.ready
	return nil
}

// show puts a version into use without a turn.
func (h *host) show(ctx context.Context, version int64) error {
	tree, err := h.tree(ctx, h.ready, h.act, version)
	if err != nil {
		return err
	}
	tree = cmp.Or(tree, h.ready)
	h.p.cfg.Host.Show(tree)
	h.p.inUse = tree.Generation
	return nil
}

// tree reads a version; when it is gone, it returns the one that ready names. The second
// goroutine calls it, too, so it reads no field that the loop changes.
func (h *host) tree(ctx context.Context, ready *view.Tree, a *part, version int64) (*view.Tree, error) {
	v := Version{Number: version}
	switch {
	case version == 0:
		return nil, nil //nolint:nilnil // no version is no error
	case version == ready.Generation:
		return ready, nil
	case a != nil && version == a.Proposal.Version:
		v = versionOf(a.Proposal)
	}
	tree, err := h.p.cfg.Tree(ctx, h.s, v)
	if errors.Is(err, config.ErrNoVersion) {
		return ready, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read version %d: %w", version, err)
	}
	return tree, nil
}
