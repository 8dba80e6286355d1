package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// versionRollout is the newest rollout that a version was proposed by.
type versionRollout struct {
	Name  string `json:"name"`
	Phase string `json:"phase"`

	open bool
}

// rolloutsOf are the rollouts of a config by the versions that they bring.
func rolloutsOf(ctx context.Context, s *session.Session, t target) (map[int64]*versionRollout, error) {
	names, err := fleet.Names(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	rollouts := map[int64]*versionRollout{}
	for _, name := range names {
		// Skip an unreadable rollout: it must not break the history.
		if state, err := fleet.Head(ctx, s, t.path, name); err == nil {
			rollouts[state.Proposal.Version] = &versionRollout{name, state.Phase(), state.Open() && !state.Proposal.Dry}
		}
	}
	return rollouts, nil
}

// bringing says which version is in use and which one the open rollout brings;
// empty: no rollout is open.
func bringing(ctx context.Context, s *session.Session, t target) (string, error) {
	name, err := fleet.Current(ctx, s, t.path)
	if errors.Is(err, fleet.ErrNoRollout) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	state, err := fleet.Head(ctx, s, t.path, name)
	if errors.Is(err, fleet.ErrNoRollout) || err == nil && (!state.Open() || state.Proposal.Dry) {
		return "", nil // it ended meanwhile, or changes nothing
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("v%d is in use, %s brings v%d (%s)", state.Proposal.Previous, name, state.Proposal.Version, state.Phase()), nil
}

// dryRun asks the hosts, and explains why that was not possible.
func dryRun(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig, timeout time.Duration) (*fleet.Answers, error) {
	cfg.Author = userName()
	answers, err := fleet.DryRun(ctx, s, cfg, timeout)
	if errors.Is(err, fleet.ErrEnded) {
		return nil, fail(exitTemporary, err, "ask again when the rollout or dry run that replaced it is over")
	}
	return answers, explainRollout(ctx, s, t, err)
}

func printFleetPlan(console *term.Console, p *fleet.Answers) {
	changing := map[string]bool{}
	for _, c := range p.Changes {
		for _, id := range c.Hosts {
			changing[id] = true
		}
	}
	unchecked := ""
	if n := len(p.Unchecked); n > 0 {
		unchecked = fmt.Sprintf(", %d did not run their checks", n)
	}
	console.Printf("Asked %s: %d would change, %d would not, %d refuse, %d do not answer%s%s\n",
		term.Count(p.Hosts, "host"), len(changing), len(p.Unchanged), len(p.Refused), len(p.Silent), unchecked, besides(len(p.Skipped)))
	if len(p.Changes) > 0 {
		t := &term.Table{Header: []string{"FILE", "LINES", "HOSTS", "RELOAD", "WHERE"}}
		for _, c := range p.Changes {
			lines := fmt.Sprintf("+%d -%d", c.Added, c.Removed)
			if c.Digest == fleet.DigestGone {
				lines = "removed"
			}
			t.Add(c.Path, lines, strconv.Itoa(len(c.Hosts)), cmp.Or(c.Reload, "-"), someHosts(c.Hosts))
		}
		_ = console.PrintTable(t)
	}
	for _, w := range p.Refused {
		console.Printf("%s refuses: %s\n", w.Host, term.Printable(w.Reason))
	}
	for _, w := range p.Skipped {
		console.Printf("%s is in maintenance: %s\n", w.Host, term.Printable(w.Reason))
	}
	if len(p.Silent) > 0 {
		console.Printf("no answer: %s\n", someHosts(p.Silent))
	}
	for _, c := range p.Changes {
		if c.Diff == "" {
			continue
		}
		console.Printf("%s on %s:\n", c.Path, someHosts(c.Hosts))
		_ = console.PrintDiff(c.Diff + "\n")
	}
}

// someHosts are the first of the hosts.
func someHosts(ids []string) string { return term.First(ids, 5) }
