package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/view"
)

// Plan implements fleet.Planner: it is Vote that also says which files the version
// would change, by how many lines, and what would be reloaded.
func (m *configTree) Plan(ctx context.Context, tree *view.Tree, diff bool) ([]fleet.FileChange, error) {
	diff = diff && m.agent.cfg.Load().ShareDiffs
	var files []fleet.FileChange
	err := m.judge(ctx, tree, func(ctx context.Context, b *apply.Bundle, v view.View) error {
		changes, err := m.agent.engine.Plan(ctx, b, v)
		for _, c := range changes {
			f := fileChange(c, diff)
			if r := b.Config.Reload; r != nil && r.Command.Set() {
				f.Reload = r.Command.Text
			}
			files = append(files, f)
		}
		return err
	})
	return files, err
}

// fileChange says what would change in one file.
func fileChange(c apply.Planned, diff bool) fleet.FileChange {
	f := fleet.FileChange{Path: c.Destination}
	var old []byte
	if c.Config != nil {
		old, _, _ = c.Config.Present(c.Destination) // What cannot be read has no lines.
	}
	f.Added, f.Removed = apply.Lines(old, c.Data)
	if c.Gone {
		f.Digest = fleet.DigestGone
		return f
	}
	sum := sha256.Sum256(c.Data)
	f.Digest = hex.EncodeToString(sum[:8])
	if diff {
		d, _ := compareFile(c.Output)
		f.Diff = strings.Join(d.Lines, "\n")
	}
	return f
}
