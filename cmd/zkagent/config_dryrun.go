package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// fleetPlan holds the answers of all hosts about a version.
type fleetPlan struct {
	Hosts     int           `json:"hosts"` // that were asked
	Unchanged []string      `json:"unchanged,omitempty"`
	Changes   []fleetChange `json:"changes,omitempty"`
	Refused   []hostWords   `json:"refused,omitempty"`
	Skipped   []hostWords   `json:"skipped,omitempty"` // in maintenance
	Silent    []string      `json:"silent,omitempty"`  // no answer
}

// fleetChange is one change of one file, on all hosts where it is the same.
type fleetChange struct {
	Path    string   `json:"path"`
	Digest  string   `json:"digest"`
	Added   int      `json:"added"`
	Removed int      `json:"removed"`
	Reload  string   `json:"reload,omitempty"`
	Hosts   []string `json:"hosts"`
	Diff    string   `json:"diff,omitempty"` // of one of the hosts
}

// hostWords is the message of one host.
type hostWords struct {
	Host   string `json:"host"`
	Reason string `json:"reason"`
}

// endDry bounds the deletion of a dry run after its command was interrupted.
const endDry = 10 * time.Second

// dryRun asks every subscriber what the version would change there. It always
// deletes the dry run at the end.
func dryRun(ctx context.Context, console *term.Console, s *session.Session, t target, cfg config.PublishConfig, timeout time.Duration) (*fleetPlan, error) {
	subscribers, err := config.Subscribers(ctx, s, t.path)
	if err != nil {
		return nil, err
	}
	if err := fleet.CheckVoters(subscribers); err != nil {
		return nil, nobodyError(err)
	}
	cfg.Dry = true
	r, err := config.Prepare(ctx, s, cfg)
	if err != nil {
		return nil, err
	}
	name, err := fleet.Propose(ctx, s, fleet.Request{
		Root: t.path, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Base: r.Previous, Dry: true, Who: userName(), Why: cfg.Message,
		Strategy: fleet.Strategy{VoteTimeout: fleet.Duration(timeout)},
	})
	if errors.Is(err, fleet.ErrOpen) {
		return nil, openError(ctx, s, err, t)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endDry)
		defer cancel()
		if err := fleet.EndDry(ctx, s, t.path, name, userName()); err != nil {
			console.Warnf("the dry run is not deleted: %v; the next rollout does it", err)
		}
	}()
	console.Say("%s: asking %s", t.name, term.Count(len(subscribers), "agent"))
	err = fleet.Watch(ctx, s, t.path, name, func(state *fleet.State) bool { return state.Open() })
	if err != nil {
		return nil, err
	}
	state, err := fleet.Read(ctx, s, t.path, name)
	if err != nil {
		return nil, err
	}
	if state.Gate.Result != fleet.ResultPlanned {
		return nil, fail(exitTemporary, fmt.Errorf("the dry run was ended by %s: %s", cmp.Or(state.Gate.By, "somebody else"), state.Gate.Result), "ask again when the rollout or dry run that replaced it is over")
	}
	return planOf(state), nil
}

// planOf groups the answers by what would change.
func planOf(state *fleet.State) *fleetPlan {
	p := &fleetPlan{Hosts: len(state.Called)}
	index := map[fleet.FileChange]int{}
	for _, id := range hostsOf(state) {
		r, answered := state.Hosts[id]
		switch {
		case !answered:
			p.Silent = append(p.Silent, id)
			continue
		case r.State == fleet.HostSkipped:
			p.Skipped = append(p.Skipped, hostWords{id, r.Error})
			continue
		case r.State == fleet.HostAbort:
			p.Refused = append(p.Refused, hostWords{id, r.Error})
			continue
		case len(r.Files) == 0 && r.More == 0:
			p.Unchanged = append(p.Unchanged, id)
		}
		if r.More > 0 {
			r.Files = append(r.Files, fleet.FileChange{Path: fmt.Sprintf("(%s more)", term.Count(r.More, "file"))})
		}
		for _, f := range r.Files {
			diff := f.Diff
			f.Diff = ""
			i, known := index[f]
			if !known {
				i = len(p.Changes)
				index[f] = i
				p.Changes = append(p.Changes, fleetChange{Path: f.Path, Digest: f.Digest, Added: f.Added, Removed: f.Removed, Reload: f.Reload})
			}
			c := &p.Changes[i]
			c.Hosts = append(c.Hosts, id)
			c.Diff = cmp.Or(c.Diff, diff)
		}
	}
	slices.SortStableFunc(p.Changes, func(a, b fleetChange) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), len(b.Hosts)-len(a.Hosts))
	})
	return p
}

// hostsOf returns all hosts of a rollout: the called ones and those that came
// later.
func hostsOf(state *fleet.State) []string {
	all := slices.Clone(state.Called)
	for id := range state.Hosts {
		all = append(all, id)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// outcome returns the error of a dry run for --exit-code.
func (p *fleetPlan) outcome() error {
	if n := len(p.Refused) + len(p.Silent); n > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s refuse the version or do not answer", n, term.Count(p.Hosts, "host")))
	}
	return nil
}

// printFleetPlan shows the table.
func printFleetPlan(console *term.Console, p *fleetPlan) error {
	changing := map[string]bool{}
	for _, c := range p.Changes {
		for _, id := range c.Hosts {
			changing[id] = true
		}
	}
	console.Printf("Asked %s: %d would change, %d would not, %d refuse, %d do not answer%s\n",
		term.Count(p.Hosts, "host"), len(changing), len(p.Unchanged), len(p.Refused), len(p.Silent), besides(len(p.Skipped)))
	if len(p.Changes) > 0 {
		t := &term.Table{Header: []string{"FILE", "LINES", "HOSTS", "RELOAD", "WHERE"}}
		for _, c := range p.Changes {
			lines := fmt.Sprintf("+%d -%d", c.Added, c.Removed)
			if c.Digest == fleet.DigestGone {
				lines = "removed"
			}
			t.Add(c.Path, lines, strconv.Itoa(len(c.Hosts)), cmp.Or(c.Reload, "-"), someHosts(c.Hosts))
		}
		if err := console.PrintTable(t); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		word  string
		words []hostWords
	}{{"refuses", p.Refused}, {"is in maintenance", p.Skipped}} {
		for _, w := range list.words {
			console.Printf("%s %s: %s\n", w.Host, list.word, term.Printable(w.Reason))
		}
	}
	if len(p.Silent) > 0 {
		console.Printf("no answer: %s\n", someHosts(p.Silent))
	}
	for _, c := range p.Changes {
		if c.Diff == "" {
			continue
		}
		console.Printf("%s on %s:\n", c.Path, someHosts(c.Hosts))
		if err := console.PrintDiff(c.Diff + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// someHosts are the first of the hosts.
func someHosts(ids []string) string {
	const most = 5
	if len(ids) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return strings.Join(ids, ", ")
}
