package config

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-multierror"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Plan is what a publish would do.
type Plan struct {
	Layout string `json:"layout"`
	// From is the generation in use, 0 for none: what the guarded publish takes
	// as Check.
	From int64 `json:"from"`
	// Next is the version that a publish would get, if nobody is faster; 0 in a
	// flat tree.
	Next    int64    `json:"next,omitempty"`
	Digest  string   `json:"digest,omitempty"`
	Count   int      `json:"count"` // keys
	Size    int64    `json:"size"`  // bytes of all values
	Changes []Change `json:"changes"`
	// Subscribers are the agents that use the tree.
	Subscribers []string `json:"subscribers"`
	// Maintenance are those among them that are in maintenance, which a rollout
	// passes by.
	Maintenance []string `json:"maintenance,omitempty"`
	// Frozen says why the config is frozen, nil when it is not.
	Frozen *FrozenError `json:"frozen,omitempty"`
	// Refused holds every reason for which the publish would be refused, nil
	// when there is none.
	Refused error `json:"-"`
}

// NewPlan tells what a publish would do, and writes nothing. The error is only
// about what could not be read; what is wrong with the publish is in Refused.
func NewPlan(ctx context.Context, s *session.Session, cfg PublishConfig) (*Plan, error) {
	var refused *multierror.Error
	if err := cfg.fill(); err != nil {
		refused = multierror.Append(refused, err)
	}
	st, err := lookState(ctx, s, cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p := &Plan{From: st.generation(), Count: len(cfg.Keys), Changes: changes(st.keys(), view.KeysOf(cfg.Keys))}
	for _, v := range cfg.Keys {
		p.Size += int64(len(v))
	}
	if p.Layout, err = cfg.layoutFor(st); err != nil {
		refused = multierror.Append(refused, err)
	}
	if bad := cfg.check(st); bad != nil {
		refused = multierror.Append(refused, bad)
	}
	if p.Frozen, err = Frozen(ctx, s, cfg.Path); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if p.Frozen != nil {
		refused = multierror.Append(refused, p.Frozen)
	}
	if p.Layout == LayoutVersioned {
		m, _ := buildVersion(cfg.Keys)
		p.Digest = m.sum.String()
		if p.Next, err = nextVersion(ctx, s, cfg.Path); err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if err = p.readSubscribers(ctx, s, cfg.Path); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p.Refused = all(refused)
	return p, nil
}

// nextVersion guesses the next number from the count of creations below
// versions, of which the server keeps count: cversion counts creations and
// deletions, and what is not there any more was both.
func nextVersion(ctx context.Context, s *session.Session, root string) (int64, error) {
	_, st, err := s.Children(ctx, root+"/"+elemVersions)
	if errors.Is(err, session.ErrNoNode) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("config %s: list versions: %w", root, err)
	}
	return max(1, (int64(st.Cversion)+int64(st.NumChildren))/2), nil
}

func (p *Plan) readSubscribers(ctx context.Context, s *session.Session, root string) error {
	list, err := Subscribers(ctx, s, root)
	p.Subscribers = []string{}
	for _, sub := range list {
		p.Subscribers = append(p.Subscribers, sub.ID)
		if sub.State == StateMaintenance {
			p.Maintenance = append(p.Maintenance, sub.ID)
		}
	}
	return err
}
