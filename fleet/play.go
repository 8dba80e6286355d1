package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// maintenanceWords is what a record says of a host in maintenance.
func maintenanceWords(reason string) string { return clip("maintenance: " + reason) }

// play takes the row of the table that fits; true: look again.
func (h *host) play(ctx context.Context) (bool, error) {
	a := h.act
	reason, _ := h.p.cfg.Maintenance()
	skipped := HostRecord{State: HostSkipped, From: h.p.inUse, Error: maintenanceWords(reason)}
	switch a.state() {
	case "":
		switch {
		case a.gate.State == GateRefused || a.gate.State == GateClosed:
			h.stopJob()
			return false, nil
		case reason != "":
			h.stopJob()
			return h.put(ctx, skipped, h.checkGate())
		case a.gate.State == GateVoting:
			return h.vote(ctx)
		case a.Proposal.Dry:
			return false, nil
		}
		return h.put(ctx, HostRecord{State: HostWait, From: h.p.inUse}, h.checkGate())
	case HostCommit, HostWait:
		if reason != "" {
			skipped.From = a.own.From
			return h.put(ctx, skipped)
		}
		if a.Proposal.Dry {
			return false, nil
		}
		return h.await(ctx)
	case HostGranted:
		if reason != "" {
			skipped.From = a.own.From
			return h.put(ctx, skipped)
		}
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
		return h.comeBack(ctx, reason)
	}
	return false, nil // abort, done
}

// checkGate makes a write fail when the gate is not the one that is known.
func (h *host) checkGate() session.Op {
	return session.CheckOp(gatePath(h.p.cfg.Root, h.act.Rollout), h.act.gateV)
}

// put writes the own record, with what else belongs into the transaction.
func (h *host) put(ctx context.Context, r HostRecord, with ...session.Op) (bool, error) {
	a := h.act
	path := recordPath(h.p.cfg.Root, a.Rollout, h.p.cfg.Agent)
	r.Version = a.Proposal.Version
	op, version := session.CreateOp(path, encode(r), session.Persistent), int32(0)
	if a.own != nil {
		op, version = session.SetOp(path, encode(r), a.ownV), a.ownV+1
	}
	a.watch.Stop() // our own write is no news
	a.watch = nil
	results, err := h.s.Multi(ctx, append(with, op)...)
	switch {
	case err == nil:
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
	case errors.Is(err, session.ErrUnknown):
		if err := h.s.Sync(ctx, path); err != nil {
			return false, err
		}
	case errors.Is(err, session.ErrBadVersion), errors.Is(err, session.ErrNodeExists), errors.Is(err, session.ErrNoNode):
	default:
		return false, fmt.Errorf("write %s: %w", r.State, err)
	}
	a.looked, a.begun = false, a.begun && a.state() == HostStarted
	if h.races++; h.races%8 == 0 {
		return false, fmt.Errorf("write %s: lost %d races: %w", r.State, h.races, err)
	}
	return true, nil
}

// vote casts this host's vote.
func (h *host) vote(ctx context.Context) (bool, error) {
	a := h.act
	if h.job == nil {
		h.beside(ctx, jobVote, func(ctx context.Context, j *job) error {
			tree, err := h.p.cfg.Tree(ctx, h.s, versionOf(a.Proposal))
			if err != nil {
				return &unreadError{fmt.Errorf("read version %d: %w", a.Proposal.Version, err)}
			}
			return h.judge(ctx, a, tree, j)
		})
	}
	if !h.job.over() {
		return false, nil
	}
	j := h.job
	h.job = nil
	var unread *unreadError
	if errors.As(j.err, &unread) && !errors.Is(j.err, config.ErrNoVersion) && !errors.Is(j.err, config.ErrDigest) {
		return false, j.err // ZooKeeper's trouble is no vote
	}
	r := HostRecord{State: HostCommit, From: h.p.inUse, Files: j.files}
	r.Files, r.More = boundFiles(r.Files)
	if j.err == nil {
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
	refused.State, refused.Host, refused.Reason = GateRefused, h.p.cfg.Agent, r.Error
	return h.put(ctx, r, session.SetOp(gatePath(h.p.cfg.Root, a.Rollout), encode(refused), a.gateV))
}

// judge asks the host.
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

// unreadError says that the version could not be read.
type unreadError struct{ err error }

// Error implements error.
func (e *unreadError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *unreadError) Unwrap() error { return e.err }

func versionOf(p Proposal) Version { return Version{p.Version, p.Digest, p.Delta} }

// beside runs work beside the loop. It ends with the session, or when it is
// stopped; the end of ctx alone does not end a turn.
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

// start begins the turn that was granted, when the gate is the granted one.
func (h *host) start(ctx context.Context) (bool, error) {
	a := h.act
	if own := a.own; !a.read || own.Gate > a.gateV {
		a.read, a.gateV = false, own.Gate // what the coordinator saw is newer
	} else if !a.gate.runs() {
		return h.await(ctx)
	}
	r := *a.own
	r.State, r.Life, r.Lives, r.Gate = HostStarted, h.p.cfg.Life, 1, 0
	again, err := h.put(ctx, r, h.checkGate())
	if err == nil && a.looked {
		a.begun = true
	}
	return again, err
}

// goOn works on a turn that has been started, perhaps by a former session or
// process. One that has halted meanwhile, and one in the middle of which the
// agent died too often, is given up.
func (h *host) goOn(ctx context.Context) (bool, error) {
	a, own := h.act, *h.act.own
	if a.begun {
		h.use(ctx)
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
	case own.Lives >= maxLives:
		return false, h.giveUp(ctx, fmt.Sprintf("the agent ended %d times in the middle of it", own.Lives))
	default:
		next.Life, next.Lives = h.p.cfg.Life, own.Lives+1
	}
	again, err := h.put(ctx, next, h.checkGate())
	a.begun = err == nil && a.looked
	return again, err
}

// use works on the turn.
func (h *host) use(ctx context.Context) {
	a, ready, back := h.act, h.ready, h.act.own.From // the loop changes its own meanwhile
	h.beside(ctx, jobUse, func(ctx context.Context, _ *job) error {
		tree, err := h.p.cfg.Tree(ctx, h.s, versionOf(a.Proposal))
		if err != nil {
			return fmt.Errorf("read version %d: %w", a.Proposal.Version, err)
		}
		from, err := h.treeAs(ctx, ready, a, back)
		if errors.Is(err, config.ErrNoVersion) {
			from, err = ready, nil // it is gone
		}
		if err != nil {
			return fmt.Errorf("read version %d, to go back to: %w", back, err)
		}
		return h.p.cfg.Host.Use(ctx, tree, from)
	})
}

// giveUp goes back to the version before; that this host failed is recorded when
// it is there.
func (h *host) giveUp(ctx context.Context, why string) error {
	a := h.act
	from, err := h.tree(ctx, a.own.From)
	if errors.Is(err, config.ErrNoVersion) {
		from, err = h.ready, nil // it is gone
	}
	if err != nil {
		return err
	}
	h.p.log.Warn("rollout turn given up", "rollout", a.Rollout, "version", a.Proposal.Version, "reason", why)
	a.own.Error = clip(why)
	h.beside(ctx, jobBack, func(ctx context.Context, _ *job) error { return h.p.cfg.Host.Back(ctx, from) })
	return nil
}

// record writes how the turn has ended. The last failure that is tolerated
// halts the rollout in the same step.
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
			halted.State, halted.Host, halted.Reason = GateHalted, h.p.cfg.Agent, r.Error
			with = append(with, session.SetOp(gatePath(h.p.cfg.Root, a.Rollout), encode(halted), a.gateV))
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

// comeBack ends the note of a maintenance: the host waits for its turn, or votes.
func (h *host) comeBack(ctx context.Context, reason string) (bool, error) {
	a := h.act
	if reason != "" || a.Proposal.Dry && a.gate.State != GateVoting {
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

// catchUp puts into use what the rollout takes for granted: a process that has just
// begun shows what its record says, and so does one whose record another agent with
// its id has written; a host without a record, or one that comes back
// from maintenance, first uses what ready names, or what it used in the rollout that
// this one replaces. So when nobody has changed, all use what ready names.
func (h *host) catchUp(ctx context.Context) error {
	a := h.act
	reason, _ := h.p.cfg.Maintenance()
	free := a.own == nil || a.state() == HostSkipped
	switch {
	case a.state() == HostStarted:
		return nil
	case a.state() == HostDone && a.own.Life != h.p.cfg.Life && h.p.inUse != a.Proposal.Version && reason == "":
		// Another process with this id had the turn, and is gone: what it has put into
		// use is the host's version.
	case reason != "" && h.p.inUse != 0:
		a.caught = false
		return nil
	case a.caught && h.p.inUse != 0 || free && h.p.inUse == h.ready.Generation && len(a.Proposal.Replaces) == 0:
		return nil
	}
	want, err := h.wanted(ctx)
	if err != nil {
		return err
	}
	a.caught = true
	if want == h.p.inUse {
		return nil
	}
	return h.show(ctx, want)
}

// wanted is the version that the rollout takes for granted here.
func (h *host) wanted(ctx context.Context) (int64, error) {
	a := h.act
	reason, _ := h.p.cfg.Maintenance()
	switch {
	case a.state() == HostDone:
		return a.Proposal.Version, nil
	case a.own != nil && (a.state() != HostSkipped || reason != ""):
		return a.own.From, nil
	}
	version, err := h.replacedVersion(ctx)
	if err != nil || version != 0 {
		return version, err
	}
	return h.readyVersion(ctx)
}

// readyVersion is what is used when no rollout is open: what ready names, unless
// the host has failed with it.
func (h *host) readyVersion(ctx context.Context) (int64, error) {
	own, err := h.ownIn(ctx, h.ready.Rollout)
	if err != nil {
		return 0, err
	}
	if own != nil && own.State == HostFailed && own.Version == h.ready.Generation {
		return own.From, nil
	}
	return h.ready.Generation, nil
}

// replacedVersion is the version that the record in the rollouts says that this
// one replaces; 0: there is none.
func (h *host) replacedVersion(ctx context.Context) (int64, error) {
	for chunk := range slices.Chunk(h.act.Proposal.Replaces, 16) {
		paths := make([]string, len(chunk))
		for i, name := range chunk {
			paths[i] = recordPath(h.p.cfg.Root, name, h.p.cfg.Agent)
		}
		results, err := h.s.GetMany(ctx, paths)
		if err != nil {
			return 0, fmt.Errorf("read own records: %w", err)
		}
		for i, r := range results {
			if errors.Is(r.Err, session.ErrNoNode) {
				continue
			}
			if r.Err != nil {
				return 0, fmt.Errorf("read own record: %w", r.Err)
			}
			own, err := decode[HostRecord](paths[i], r.Data)
			if err != nil {
				return 0, err
			}
			if own.State == HostDone {
				return own.Version, nil
			}
			return own.From, nil
		}
	}
	return 0, nil
}

// follow uses what ready names, when no rollout is open: unless the host has
// failed with it. A host in maintenance keeps what it has.
func (h *host) follow(ctx context.Context) error {
	if h.followed == h.ready {
		return nil
	}
	reason, _ := h.p.cfg.Maintenance()
	if reason != "" && h.p.inUse != 0 {
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

// ownIn is the own record in a rollout; nil: none.
func (h *host) ownIn(ctx context.Context, rollout string) (*HostRecord, error) {
	if rollout == "" {
		return nil, nil //nolint:nilnil // no record is no error
	}
	if a := h.act; a != nil && a.Rollout == rollout && a.looked {
		return a.own, nil
	}
	data, _, err := h.s.Get(ctx, recordPath(h.p.cfg.Root, rollout, h.p.cfg.Agent))
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil //nolint:nilnil // likewise
	}
	if err != nil {
		return nil, fmt.Errorf("read own record: %w", err)
	}
	own, err := decode[HostRecord]("record", data)
	return &own, err
}

// show puts a version into use that needs no turn.
func (h *host) show(ctx context.Context, version int64) error {
	tree, err := h.tree(ctx, version)
	if errors.Is(err, config.ErrNoVersion) || tree == nil && err == nil {
		tree, err = h.ready, nil // it is gone
	}
	if err != nil {
		return err
	}
	h.p.cfg.Host.Show(tree)
	h.p.inUse = tree.Generation
	return nil
}

// tree reads a version; nil for none.
func (h *host) tree(ctx context.Context, version int64) (*view.Tree, error) {
	return h.treeAs(ctx, h.ready, h.act, version)
}

// treeAs is tree for work beside the loop, which reads nothing that the loop
// changes.
func (h *host) treeAs(ctx context.Context, ready *view.Tree, a *part, version int64) (*view.Tree, error) {
	switch {
	case version == 0:
		return nil, nil //nolint:nilnil // no version is no error
	case version == ready.Generation:
		return ready, nil
	case a != nil && version == a.Proposal.Version:
		return h.p.cfg.Tree(ctx, h.s, versionOf(a.Proposal))
	}
	tree, err := h.p.cfg.Tree(ctx, h.s, Version{Number: version})
	if err != nil {
		return nil, fmt.Errorf("read version %d: %w", version, err)
	}
	return tree, nil
}

// Bounds of what a vote in a dry run tells.
const (
	maxFiles     = 32
	maxFileBytes = 4 << 10
	maxDiffBytes = 16 << 10
	maxSamples   = 20
)

// boundFiles leaves out what is too much, and returns how many it left out.
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
