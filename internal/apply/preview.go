package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/proc"
)

// A check with at = "preview" runs before anything is changed and sees the new files in
// place. Votes, dry runs, `zkagent render` and applies use the same preview.
//
// There are two engines of previews: a private mount namespace (package proc), and, for a
// check that a systemd unit runs, a directory that the unit binds over the destinations
// (laid.go). Where neither is possible the check runs after the swap, and a vote says that
// it was not run.

// ErrCheckNotRun says that a bundle is as it should be, as far as that is known without its
// check, which cannot run before the swap on this host.
var ErrCheckNotRun = errors.New("the check was not run: it needs the new files in place")

// PreviewOf says how this host makes previews for a check, in words; the error is why it
// makes none. A check that wants no preview has no words and no error.
func PreviewOf(c *CheckConfig) (string, error) {
	if c == nil || !c.Command.Set() || c.At != atPreview {
		return "", nil
	}
	if unit := unitOf(c); unit != "" { // It runs in no namespace of ours.
		if _, err := boundBy(unit); err != nil {
			return "", err
		}
		return "the unit " + unit, nil
	}
	way, why := proc.FindPreview()
	if way == proc.NoPreview {
		return "", why
	}
	return way.String(), nil
}

// CheckStatus says when the check of a bundle runs on this host, for people; "" without a
// check.
func CheckStatus(c *CheckConfig) string {
	if c == nil || !c.Command.Set() {
		return ""
	}
	switch way, err := PreviewOf(c); {
	case err != nil:
		return "after the swap, and not in votes: no preview is possible: " + err.Error()
	case way != "":
		return "before the swap, in a preview by " + way
	case c.At == atSwapped:
		return "after the swap, and not in votes"
	}
	return "before the swap, on the staged files"
}

// checkAt is when the check of the bundle runs on this host; empty: there is none.
func (t *applying) checkAt() string {
	c := t.job.Bundle.Config.Check
	if c == nil || !c.Command.Set() {
		return ""
	}
	if t.at == "" {
		t.at = cmp.Or(c.At, atStaged)
		if c.At == atPreview {
			if _, t.unseen = t.Previews(c); t.unseen != nil {
				t.at = atSwapped
			}
		}
	}
	return t.at
}

// withoutPreview reports whether an apply failed because no preview could be made of its
// files. It then goes on without one.
func (t *applying) withoutPreview(err error) bool {
	failed, ok := errors.AsType[*proc.PreviewError](err)
	if !ok || t.unseen != nil {
		return false
	}
	t.unseen, t.at = failed, atSwapped
	t.Log.Warn("the check runs after the swap: the files cannot be shown to it before", "template", t.name, "err", failed)
	return true
}

// preview are the files of the bundle as the swap will leave them.
func (t *applying) preview() *proc.Preview {
	p := &proc.Preview{}
	var after []files.After
	for _, f := range t.later {
		after = append(after, f.After)
	}
	for _, s := range t.tx.Files() {
		if s.Changed() {
			after = append(after, s.After())
		}
		if beside := s.Beside(); beside != "" {
			p.Hide = append(p.Hide, beside)
		}
	}
	for _, f := range after {
		p.Files = append(p.Files, proc.PreviewFile(f))
	}
	return p
}

func (t *applying) runPreview(ctx context.Context, cmd proc.Command, p *proc.Preview) error {
	if unit := unitOf(t.job.Bundle.Config.Check); unit != "" {
		return t.runLaid(ctx, unit, cmd, p)
	}
	cmd.Preview = p
	_, err := t.Options.Run(ctx, cmd)
	return err
}

// unitOf is the systemd unit that runs a check by the program zkagent-check; "" for another
// command.
func unitOf(c *CheckConfig) string {
	args, err := c.Command.Args(command.Vars{})
	if err != nil || len(args) != 2 || filepath.Base(args[0]) != "zkagent-check" {
		return ""
	}
	return fmt.Sprintf("zkagent-check@%s.service", args[1])
}
