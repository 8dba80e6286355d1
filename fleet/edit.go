package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// maxEdits bounds how often an edit is repeated because other publishers were
// faster.
const maxEdits = 100

// Edit changes the tree in use. It calls edit with the current keys, which edit may
// change, and publishes the result with cfg, whose Keys it sets. If another publisher was
// faster, it calls edit again with the newer keys, so no change is lost. If edit returns
// an error, nothing changes. If there is no tree, edit gets an empty map.
func Edit(ctx context.Context, s *session.Session, cfg PublishConfig, edit func(keys map[string][]byte) error) (Result, error) {
	for range maxEdits {
		var err error
		if cfg.base, err = trees.ReadState(ctx, s, cfg.Path); err != nil {
			return Result{}, fmt.Errorf("edit: %w", err)
		}
		generation := cfg.base.Generation()
		cfg.Check, cfg.Keys = &generation, map[string][]byte{}
		if cfg.base.Exists {
			for key, k := range cfg.base.Keys().All() {
				cfg.Keys[key] = append([]byte{}, k.Value...)
			}
		}
		if err = edit(cfg.Keys); err != nil {
			return Result{}, err
		}
		res, err := Publish(ctx, s, cfg)
		if !errors.Is(err, ErrConflict) {
			return res, err
		}
	}
	return Result{}, fmt.Errorf("edit config %s: others were faster %d times: %w", cfg.Path, maxEdits, ErrConflict)
}
