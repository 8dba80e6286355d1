package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/template"
)

// check runs the check of the bundle if it belongs to this moment.
func (t *applying) check(ctx context.Context, swapped bool) error {
	at, dir := t.checkAt(), ""
	if at == "" || (at == atSwapped) != swapped {
		return nil
	}
	var preview *proc.Preview
	switch at {
	case atStaged:
		var err error
		if dir, err = t.stagedDir(); err != nil {
			return fail(stageStage, time.Second, err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	case atPreview:
		preview = &proc.Preview{} // the files of the bundle as the swap will leave them
		after := lists.Map(t.later, func(f laterFile) files.After { return f.After })
		for _, s := range t.tx.Files() {
			if s.Changed() {
				after = append(after, s.After())
			}
			if beside := s.Beside(); beside != "" {
				preview.Hide = append(preview.Hide, beside)
			}
		}
		for _, f := range after {
			preview.Files = append(preview.Files, proc.PreviewFile(f))
		}
	}
	return t.checkEach(ctx, t.stagedVars(dir), preview)
}

// checkEach runs the check for each of the variables, in a preview unless that is nil.
func (t *applying) checkEach(ctx context.Context, list []command.Vars, preview *proc.Preview) error {
	c := t.job.Bundle.Config.Check
	lists, err := distinct(c.Command, list)
	if err != nil {
		return fail(stageCheck, 0, err)
	}
	for _, args := range lists {
		cmd := t.trigger(command.EventCheck).Command(c.Command, args)
		cmd.Timeout = cmp.Or(max(c.Timeout, 0), DefaultCheckTimeout)
		if preview != nil && unitOf(c) != "" {
			err = t.runLaid(ctx, unitOf(c), cmd, preview)
		} else {
			cmd.Preview = preview
			_, err = t.Options.Run(ctx, cmd)
		}
		if err != nil {
			return fail(stageCheck, 5*time.Second, err)
		}
	}
	return nil
}

// distinct returns the different argument lists of a command.
func distinct(c command.Command, list []command.Vars) ([][]string, error) {
	var lists [][]string
	seen := map[string]bool{}
	for _, vars := range list {
		args, err := c.Args(vars)
		if err != nil {
			return nil, err
		}
		if key := strings.Join(args, "\x00"); !seen[key] {
			seen[key] = true
			lists = append(lists, args)
		}
	}
	return lists, nil
}

// stagedDir makes the private directory in which every file of the bundle
// stands under its destination.
func (t *applying) stagedDir() (string, error) {
	base := ""
	if t.StateDir != "" {
		base = filepath.Join(t.StateDir, "staged")
		if err := files.MakeOwn(base); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(base, "bundle-")
	if err != nil {
		return "", err
	}
	if err := t.tx.Materialize(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// stagedVars are the variables of a check: once for each element with files that change.
// Where all files of the bundle are staged in dir, they name its first staged file, else
// its first file at its destination.
func (t *applying) stagedVars(dir string) []command.Vars {
	var list []command.Vars
	seen, staged := map[string]bool{}, t.tx.Files()
	add := func(o *output, vars command.Vars) {
		if !seen[o.eachKey()] {
			seen[o.eachKey()] = true
			list = append(list, vars)
		}
	}
	for i, o := range t.staged {
		if dir == "" {
			add(o, t.job.Bundle.vars(o.each))
			continue
		}
		add(o, command.Vars{Staged: staged[i].Path(dir), StagedDir: dir, Destination: o.Destination, Each: o.each})
	}
	for _, f := range t.later {
		add(f.output, t.job.Bundle.vars(f.each))
	}
	if len(list) == 0 { // Files go.
		var first *template.Each
		if elements, err := t.job.elements(); err == nil && len(elements) > 0 {
			first = elements[0]
		}
		list = append(list, t.job.Bundle.vars(first))
	}
	return list
}

// lists evaluates the distinct argument lists of the reload: for the elements
// whose files changed, or for all when a reload was pending before.
func (t *applying) lists(c command.Command) ([][]string, error) {
	elements, removed, err := t.touched()
	if err != nil {
		return nil, err
	}
	list := t.job.Bundle.allVars(elements)
	if removed {
		// A command that names no element makes the program notice that a file
		// is gone. One that names an element has none left to name.
		if _, err := c.Args(command.Vars{}); err == nil {
			list = append(list, command.Vars{})
		}
	}
	return distinct(c, list)
}

// touched are the elements to reload, or one nil for a bundle without for_each.
// removed says that files of elements were removed.
func (t *applying) touched() (list []*template.Each, removed bool, err error) { //nolint:nonamedreturns // a list and a bool need names.
	if t.job.Bundle.Config.ForEach == nil || t.job.pendingReload || t.tx == nil {
		list, err := t.job.elements()
		return list, t.job.Bundle.Config.ForEach != nil, err
	}
	seen := map[string]bool{}
	for i, s := range t.tx.Files() {
		switch {
		case !s.Changed():
		case i >= len(t.staged):
			removed = true // removals come last.
		case !seen[t.staged[i].eachKey()]:
			seen[t.staged[i].eachKey()] = true
			list = append(list, t.staged[i].each)
		}
	}
	return list, removed, nil
}

// A check with at = "preview" runs before anything is changed and sees the new files in
// place. Votes, dry runs, `zkagent render` and applies use the same preview.
//
// There are two engines of previews: a private mount namespace (package proc), and, for a
// check that a systemd unit runs, a directory that the unit binds over the destinations
// (laid.go). Where neither is possible the check runs after the swap, and a vote says that
// it was not run.

// ErrCheckNotRun says that a bundle is as it should be, as far as that is known without its
// check, which has no file to look at, or cannot run before the swap on this host.
var ErrCheckNotRun = errors.New("the check was not run")

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

// unitOf is the systemd unit that runs a check by the program zkagent-check; "" for another
// command.
func unitOf(c *CheckConfig) string {
	args, err := c.Command.Args(command.Vars{})
	if err != nil || len(args) != 2 || filepath.Base(args[0]) != "zkagent-check" {
		return ""
	}
	return fmt.Sprintf("zkagent-check@%s.service", args[1])
}

// The packaged agent is an unprivileged user without namespaces, and its check runs as root
// in a systemd unit. There systemd makes the preview: the agent lays the whole directory as
// it will be below its runtime directory, and the unit binds that over the destination:
//
//	BindReadOnlyPaths=-/run/zkagent/preview/%i/etc/nginx/zkagent.d:/etc/nginx/zkagent.d
//
// Only the agent's user can write below the runtime directory. Without a laid directory the
// unit sees the files in place.

// laidDir is where directories are laid for units, below the runtime directory.
const laidDir = "preview"

// bound is a directory that a unit binds over another.
type bound struct{ from, to string }

// laidFor is the directory below which the directories of a unit are laid.
func laidFor(unit string) string {
	name := strings.TrimSuffix(strings.TrimPrefix(unit, "zkagent-check@"), ".service")
	return filepath.Join(cmp.Or(os.Getenv("RUNTIME_DIRECTORY"), "/run/zkagent"), laidDir, name)
}

// bindings are what units bind, as asked lately: systemd is not asked for each view of the
// status.
var bindings sync.Map // by unit

type knownBindings struct {
	list []bound
	err  error
	at   time.Time
}

// boundBy returns what a unit binds from the runtime directory of the agent.
func boundBy(unit string) ([]bound, error) {
	if k, ok := bindings.Load(unit); ok {
		if known, ok := k.(knownBindings); ok && time.Since(known.at) < time.Minute {
			return known.list, known.err
		}
	}
	list, err := askBindings(unit)
	bindings.Store(unit, knownBindings{list, err, time.Now()})
	return list, err
}

func askBindings(unit string) ([]bound, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=BindReadOnlyPaths", "--value", unit).Output() //nolint:gosec // the settings name it
	if err != nil {
		return nil, fmt.Errorf("ask systemd what %s binds: %w", unit, err)
	}
	top := laidFor(unit) + "/"
	var list []bound
	for field := range strings.FieldsSeq(string(out)) {
		parts := strings.Split(strings.TrimPrefix(field, "-"), ":")
		if len(parts) >= 2 && strings.HasPrefix(parts[0], top) {
			list = append(list, bound{parts[0], filepath.Clean(parts[1])})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s binds nothing from %s: BindReadOnlyPaths=-%sDIR:/DIR in a drop-in lets it see new files", unit, top, top)
	}
	return list, nil
}

// runLaid lays the directories of some files for a unit, and runs the command that starts
// it.
func (t *applying) runLaid(ctx context.Context, unit string, cmd proc.Command, p *proc.Preview) error {
	release, err := t.lock.command(ctx, "laid\x00"+unit)
	if err != nil {
		return err
	}
	defer release()
	binds, err := boundBy(unit)
	if err != nil {
		return &proc.PreviewError{Reason: err.Error()}
	}
	for _, f := range p.Files {
		if !slices.ContainsFunc(binds, func(b bound) bool { return strings.HasPrefix(f.Path, b.to+"/") }) {
			return &proc.PreviewError{Reason: fmt.Sprintf("%s does not bind a directory over the directory of %s", unit, f.Path)}
		}
	}
	defer func() { _ = os.RemoveAll(laidFor(unit)) }()
	err = os.RemoveAll(laidFor(unit))
	for _, b := range binds {
		err = errors.Join(err, lay(b, p))
	}
	if err != nil {
		return &proc.PreviewError{Reason: fmt.Sprintf("lay files for %s: %v", unit, err)}
	}
	_, err = t.Options.Run(ctx, cmd)
	return err
}

// lay copies a directory as it will be.
func lay(b bound, p *proc.Preview) error {
	if err := os.MkdirAll(b.from, 0o750); err != nil { //nolint:forbidigo // in the agent's runtime directory
		return err
	}
	if err := proc.CopyDir(b.to, b.from, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	root, err := os.OpenRoot(b.from)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, path := range p.Hide {
		if rel, below := strings.CutPrefix(path, b.to+"/"); below {
			_ = root.Remove(rel)
		}
	}
	for _, f := range p.Files {
		rel, below := strings.CutPrefix(f.Path, b.to+"/")
		if !below {
			continue
		}
		f.Path, f.UID, f.GID = rel, -1, -1
		if err := f.Put(root, true); err != nil {
			return err
		}
	}
	return nil
}
