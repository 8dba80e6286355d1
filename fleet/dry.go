package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// A dry run is a rollout that never opens. Every called host reports what the
// version would change there. A host that refuses the version does not end the dry
// run. The dry run is named after its version, so the name is unique even after the
// dry run is deleted. Dry runs are not among the rollouts that are kept.

const dryPrefix = "dry-"

func dryName(version int64) string { return fmt.Sprintf("%s%010d", dryPrefix, version) }

// dryLinger is how long the coordinator leaves a finished dry run for its readers.
const dryLinger = 30 * time.Second

// EndDry ends a dry run, if it is open, and deletes it with its version. The
// proposer calls it after it has read the answers, or when it gives up.
func EndDry(ctx context.Context, s *session.Session, root, name, by string) error {
	state, err := Head(ctx, s, root, name)
	if errors.Is(err, ErrNoRollout) {
		return nil // deleted already
	}
	if err != nil {
		return err
	}
	if !state.Proposal.Dry {
		return fmt.Errorf("%s is not a dry run", name)
	}
	if state.Open() {
		if err := Abort(ctx, s, root, name, Order{By: by}); err != nil && !errors.Is(err, ErrNoRollout) {
			return err
		}
	}
	return forgetDry(ctx, s, root, name, state.Proposal.Version)
}

func forgetDry(ctx context.Context, s *session.Session, root, name string, version int64) error {
	if err := deleteVersion(ctx, s, root, version); err != nil && !errors.Is(err, session.ErrNoAuth) {
		return err // no right to delete: the next garbage collection does it
	}
	for range maxTries {
		if err := forgetRollout(ctx, s, root, name); err != nil {
			return err
		}
		// A candidate may have come meanwhile. It leaves a closed dry run at once.
		if _, ok, err := s.Exists(ctx, rolloutPath(root, name)); err != nil || !ok {
			return err
		}
	}
	return nil // the next coordinator deletes it
}

// deleteVersion deletes a version that is not in use.
func deleteVersion(ctx context.Context, s *session.Session, root string, version int64) error {
	return transact(ctx, s, trees.ReadyPath(root), func(bool) ([]session.Op, error) {
		ready, stat, err := trees.ReadReady(ctx, s, root)
		if err != nil || ready.Version == version || ready.Previous == version {
			return nil, err
		}
		path := trees.VersionPath(root, version)
		if _, ok, err := s.Exists(ctx, path); err != nil || !ok {
			return nil, err
		}
		return []session.Op{session.CheckOp(trees.ReadyPath(root), stat.Version), session.DeleteOp(path, -1)}, nil
	})
}

// linger deletes the dry run, unless the proposer does within dryLinger.
func (c *coordinator) linger(ctx context.Context) error {
	path := rolloutPath(c.root, c.name)
	_, ok, watch, err := c.s.ExistsW(ctx, path)
	defer watch.Stop()
	if err != nil || !ok {
		return err
	}
	if deleted, err := watch.WaitFor(ctx, dryLinger); err != nil || deleted {
		return err
	}
	return forgetDry(ctx, c.s, c.root, c.name, c.proposal.Version)
}

// collectDry deletes finished dry runs that their proposers left behind.
func (c *coordinator) collectDry(ctx context.Context, names []string) error {
	for _, name := range names {
		if !strings.HasPrefix(name, dryPrefix) || name == c.name {
			continue
		}
		state, err := Head(ctx, c.s, c.root, name)
		switch {
		case errors.Is(err, ErrNoRollout):
			err = forgetRollout(ctx, c.s, c.root, name)
		case err == nil && !state.Open():
			err = forgetDry(ctx, c.s, c.root, name, state.Proposal.Version)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Answers are the answers of all hosts about a version in a dry run.
type Answers struct {
	Version   int64            `json:"-"`     // that the dry run used up; its number never comes again
	Hosts     int              `json:"hosts"` // that were asked
	Unchanged []string         `json:"unchanged,omitempty"`
	Changes   []AnsweredChange `json:"changes,omitempty"`
	Refused   []HostAnswer     `json:"refused,omitempty"`
	Skipped   []HostAnswer     `json:"skipped,omitempty"`   // in maintenance
	Silent    []string         `json:"silent,omitempty"`    // no answer
	Unchecked []HostAnswer     `json:"unchecked,omitempty"` // could not run all checks
}

// AnsweredChange is one change of one file, on all hosts where it is the same. Its Diff is
// of one of them.
type AnsweredChange struct {
	FileChange

	Hosts []string `json:"hosts"`
}

// HostAnswer is the message of one host.
type HostAnswer struct {
	Host   string `json:"host"`
	Reason string `json:"reason"`
}

// endDry bounds the deletion of a dry run after its caller was interrupted.
const endDry = 10 * time.Second

// ErrEnded says that a publish or a rollout ended a dry run.
var ErrEnded = errors.New("the dry run was ended")

// DryRun asks every subscriber which files the tree would change there, and waits for the
// answers. A host that does not answer within timeout is silent. No host uses the
// version. DryRun deletes the version and the dry run at the end, also when ctx ends.
func DryRun(ctx context.Context, s *session.Session, cfg PublishConfig, timeout time.Duration) (*Answers, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if _, _, err := voters(ctx, s, cfg.Path, nil); err != nil {
		return nil, err
	}
	switch open, err := Opened(ctx, s, cfg.Path); {
	case err != nil:
		return nil, err
	case open != nil:
		return nil, fmt.Errorf("%w: %s", ErrOpen, open.Name)
	}
	cfg.Dry = true
	r, err := Prepare(ctx, s, cfg)
	if err != nil {
		return nil, err
	}
	name, err := Propose(ctx, s, Request{
		Root: cfg.Path, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Base: r.Previous, Dry: true, Who: cfg.Author, Why: cfg.Message,
		Strategy: Strategy{VoteTimeout: Duration(timeout)},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endDry)
		defer cancel()
		if err := EndDry(ctx, s, cfg.Path, name, cfg.Author); err != nil && cfg.Logger != nil {
			cfg.Logger.Warn("the dry run is not deleted; the next rollout does it", "err", err)
		}
	}()
	if err = Watch(ctx, s, cfg.Path, name, func(state *State) bool { return state.Open() }); err != nil {
		return nil, err
	}
	state, err := Read(ctx, s, cfg.Path, name)
	if err != nil {
		return nil, err
	}
	if state.Gate.Result != ResultPlanned {
		return nil, fmt.Errorf("%w by %s: %s", ErrEnded, cmp.Or(state.Gate.By, "somebody else"), state.Gate.Result)
	}
	return answersOf(state), nil
}

func answersOf(state *State) *Answers {
	p := &Answers{Version: state.Proposal.Version, Hosts: len(state.Called)}
	index := map[FileChange]int{}
	for _, id := range state.All() {
		r, answered := state.Hosts[id]
		switch {
		case !answered:
			p.Silent = append(p.Silent, id)
			continue
		case r.State == HostSkipped:
			p.Skipped = append(p.Skipped, HostAnswer{Host: id, Reason: r.Error})
			continue
		case r.State == HostAbort:
			p.Refused = append(p.Refused, HostAnswer{Host: id, Reason: r.Error})
			continue
		case r.Unchecked:
			p.Unchecked = append(p.Unchecked, HostAnswer{Host: id, Reason: r.Error})
		case len(r.Files) == 0 && r.More == 0:
			p.Unchanged = append(p.Unchanged, id)
		}
		if r.More > 0 {
			r.Files = append(r.Files, FileChange{Path: fmt.Sprintf("(%d more)", r.More)})
		}
		for _, f := range r.Files {
			diff := f.Diff
			f.Diff = ""
			i, known := index[f]
			if !known {
				i = len(p.Changes)
				index[f] = i
				p.Changes = append(p.Changes, AnsweredChange{FileChange: f})
			}
			c := &p.Changes[i]
			c.Hosts = append(c.Hosts, id)
			c.Diff = cmp.Or(c.Diff, diff)
		}
	}
	slices.SortStableFunc(p.Changes, func(a, b AnsweredChange) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), len(b.Hosts)-len(a.Hosts))
	})
	return p
}

// All returns all hosts of the rollout, sorted: the called ones and those that came
// later.
func (s *State) All() []string {
	all := slices.AppendSeq(slices.Clone(s.Called), maps.Keys(s.Hosts))
	slices.Sort(all)
	return slices.Compact(all)
}
