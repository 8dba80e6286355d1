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

// How a host follows the config beside a rollout: it catches up with the version that is
// ready for it, and comes back from one that was taken back.

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

// catchUp puts the version into use that the rollout expects here. A new process
// uses the version that its record names; so does a process whose record another
// agent with the same id wrote. A host without a record, or back from maintenance,
// uses the version that ready names, or the one that it used in the replaced
// rollout. So while no host has changed, all hosts use the version that ready
// names.
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
	own, err := h.ownIn(ctx, h.ready.Rollout)
	if err != nil {
		return 0, err
	}
	if own != nil && own.State == HostFailed && own.Version == h.ready.Generation {
		return own.From, nil
	}
	return h.ready.Generation, nil
}

// replacedVersion returns the version from the host's records in the rollouts that
// this one replaces; 0: no record.
func (h *host) replacedVersion(ctx context.Context) (int64, error) {
	for chunk := range slices.Chunk(h.act.Proposal.Replaces, 16) {
		version, found := int64(0), false
		path := func(rollout string) string { return recordPath(h.p.cfg.Root, rollout, h.p.cfg.Agent) }
		err := getEach(ctx, h.s, chunk, path, func(rollout string, r session.Result) error {
			if r.Err != nil {
				return r.Err
			}
			own, err := decode[HostRecord](path(rollout), r.Data)
			switch {
			case err != nil || found:
			case own.State == HostDone:
				version, found = own.Version, true
			case own.State == HostSkipped && h.away == "":
				// as without a record: in maintenance the host may have missed a version
			default:
				version, found = own.From, true
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("read own records: %w", err)
		}
		if found {
			return version, nil
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

// ownIn reads the host's own record in a rollout; nil: no record.
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

// show puts a version into use without a turn.
func (h *host) show(ctx context.Context, version int64) error {
	tree, err := h.tree(ctx, h.ready, h.act, version)
	if err != nil {
		return err
	}
	if tree == nil {
		tree = h.ready
	}
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
