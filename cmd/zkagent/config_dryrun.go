package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// dryRun asks the hosts, and explains why that was not possible.
func dryRun(ctx context.Context, s *session.Session, t target, cfg fleet.PublishConfig, timeout time.Duration) (*fleet.Answers, error) {
	cfg.Author = userName()
	answers, err := fleet.DryRun(ctx, s, cfg, timeout)
	if errors.Is(err, fleet.ErrEnded) {
		return nil, fail(exitTemporary, err, "ask again when the rollout or dry run that replaced it is over")
	}
	return answers, explainRollout(ctx, s, t, err)
}

// outcome returns the error of a dry run in which not all hosts accept the version.
func outcome(p *fleet.Answers) error {
	if n := len(p.Refused) + len(p.Silent); n > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s refused the version or did not answer", n, term.Count(p.Hosts, "host")))
	}
	if n := len(p.Unchecked); n > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s did not run their checks", n, term.Count(p.Hosts, "host")),
			"there the check runs after the swap; \"zkagent doctor\" on the host says why no preview is possible")
	}
	return nil
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
func someHosts(ids []string) string { return firstOf(ids, 5) }

// firstOf lists at most so many of the words.
func firstOf(words []string, most int) string {
	if len(words) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}
