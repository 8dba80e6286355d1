package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
)

// PublisherConfig describes a [Publisher]. Only Path is required. Each call sets Keys and
// Message.
type PublisherConfig = PublishConfig

// Publisher publishes one config tree from a program, any number of times. It has
// no state besides its configuration, and holds nothing in ZooKeeper between two
// calls. Several goroutines may use it. Several publishers may share a path,
// because each publish takes the publishers' lock.
type Publisher struct {
	sessions config.Sessions
	cfg      PublisherConfig
}

// NewPublisher returns a Publisher that works in the sessions. It does no I/O.
func NewPublisher(sessions config.Sessions, cfg PublisherConfig) *Publisher {
	return &Publisher{sessions: sessions, cfg: cfg}
}

// Publish makes keys the tree in use. It removes all other keys. It is [Publish]
// with the publisher's configuration.
func (p *Publisher) Publish(ctx context.Context, keys map[string][]byte, message string) (Result, error) {
	s, err := p.sessions.Session(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("publish: %w", err)
	}
	cfg := p.cfg
	cfg.Keys, cfg.Message = keys, message
	return Publish(ctx, s, cfg)
}

// maxEdits bounds how often an edit is repeated because other publishers were
// faster.
const maxEdits = 100

// Edit changes the tree in use. It calls edit with the current keys, which edit may
// change, and publishes the result. If another publisher was faster, it calls edit
// again with the newer keys, so no change is lost. If edit returns an error,
// nothing changes. If there is no tree, edit gets an empty map.
func (p *Publisher) Edit(ctx context.Context, message string, edit func(keys map[string][]byte) error) (Result, error) {
	for range maxEdits {
		s, err := p.sessions.Session(ctx)
		if err != nil {
			return Result{}, fmt.Errorf("edit: %w", err)
		}
		cfg := p.cfg
		if cfg.base, err = trees.ReadState(ctx, s, p.cfg.Path); err != nil {
			return Result{}, fmt.Errorf("edit: %w", err)
		}
		generation := cfg.base.Generation()
		cfg.Check, cfg.Keys, cfg.Message = &generation, map[string][]byte{}, message
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
	return Result{}, fmt.Errorf("edit config %s: others were faster %d times: %w", p.cfg.Path, maxEdits, ErrConflict)
}

// Rollback publishes the content of an older version as a new version. If to is 0,
// it takes the version before the one in use. See [Rollback].
func (p *Publisher) Rollback(ctx context.Context, to int64, message string) (Result, error) {
	s, err := p.sessions.Session(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("rollback: %w", err)
	}
	cfg := p.cfg
	cfg.Message = message
	return Rollback(ctx, s, cfg, to)
}
