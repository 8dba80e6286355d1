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

	"github.com/zkagent/zkagent/internal/proc"
)

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
