package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Plan describes the changes that a publish would make.
type Plan struct {
	Layout string `json:"layout"`
	// From is the generation in use, 0 for none. The guarded publish takes it as
	// Check.
	From int64 `json:"from"`
	// Next is the version that a publish would get, unless another publisher is
	// faster; 0 in a flat tree.
	Next    int64           `json:"next,omitempty"`
	Digest  string          `json:"digest,omitempty"`
	Count   int             `json:"count"` // keys
	Size    int64           `json:"size"`  // bytes of all values
	Changes []config.Change `json:"changes"`
	// Subscribers are the agents that use the tree.
	Subscribers []string `json:"subscribers"`
	// Maintenance lists the subscribers in maintenance. A rollout skips them.
	Maintenance []string `json:"maintenance,omitempty"`
	// Frozen has the reason why the config is frozen; nil when it is not.
	Frozen *FrozenError `json:"frozen,omitempty"`
	// Refused holds every reason to refuse the publish, or nil.
	Refused error `json:"-"`
}

// NewPlan returns the changes that a publish would make. It writes nothing. The error only
// reports failed reads; Refused reports an invalid publish.
func NewPlan(ctx context.Context, s *session.Session, cfg PublishConfig) (*Plan, error) {
	var refused []error
	if err := cfg.fill(); err != nil {
		refused = append(refused, err)
	}
	st, err := trees.LookState(ctx, s, cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p := &Plan{From: st.Generation(), Count: len(cfg.Keys), Changes: changesOf(st, view.KeysOf(cfg.Keys))}
	for _, v := range cfg.Keys {
		p.Size += int64(len(v))
	}
	if p.Layout, err = cfg.layoutFor(st); err != nil {
		refused = append(refused, err)
	}
	if bad := cmp.Or(cfg.checkGeneration(st), cfg.check(st)); bad != nil {
		refused = append(refused, bad)
	}
	if p.Frozen, err = Frozen(ctx, s, cfg.Path); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if p.Frozen != nil {
		refused = append(refused, p.Frozen)
	}
	if p.Layout == config.LayoutVersioned {
		m, _ := buildVersion(cfg.Keys)
		p.Digest = m.Sum.String()
		if p.Next, err = guessVersion(ctx, s, cfg.Path); err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if p.Subscribers, p.Maintenance, err = subscribed(ctx, s, cfg.Path); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p.Refused = errors.Join(refused...)
	return p, nil
}

// guessVersion guesses the next number from the number of znodes ever created below
// versions. The cversion of versions counts creations and deletions. A deleted
// child has caused both, an existing child one creation.
func guessVersion(ctx context.Context, s *session.Session, root string) (int64, error) {
	_, st, err := s.Children(ctx, root+"/"+trees.ElemVersions)
	if errors.Is(err, session.ErrNoNode) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("config %s: list versions: %w", root, err)
	}
	return max(1, (int64(st.Cversion)+int64(st.NumChildren))/2), nil
}
