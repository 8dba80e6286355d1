package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// The znodes of rollouts that this package uses:
//
//	<root>/rollouts/current          the name of the open rollout
//	<root>/rollouts/r-<S>            its proposal
//	<root>/rollouts/r-<S>/gate       how far it is
//	<root>/rollouts/shards/<h>       the call of a shard of the subscribers
//	<root>/rollouts/shards/<h>/<id>  (E) a subscription
//
// h is the first six bits of the SHA-256 of the agent's id, in two hexadecimal
// digits. Package fleet defines the other znodes.

// Shards is the number of shards.
const Shards = 64

// Shard is the shard of an agent, "00" to "3f".
func Shard(id string) string {
	return fmt.Sprintf("%02x", sha256.Sum256([]byte(id))[0]>>2)
}

// RolloutsPath is where the rollouts of a tree lie.
func RolloutsPath(root string) string { return session.JoinPath(root, elemRollouts) }

// CurrentPath names the open rollout of a tree.
func CurrentPath(root string) string { return RolloutsPath(root) + "/current" }

// ShardPath is a shard of the subscribers.
func ShardPath(root, shard string) string { return RolloutsPath(root) + "/shards/" + shard }

// SubscriptionPath is the subscription of an agent.
func SubscriptionPath(root, id string) string { return ShardPath(root, Shard(id)) + "/" + id }

// ReadyPath is the znode that names the version in use.
func ReadyPath(root string) string { return readyPath(root) }

// VersionPath is the znode of a version.
func VersionPath(root string, n int64) string { return versionPath(root, n) }

// VersionsPath is where the versions of a tree lie.
func VersionsPath(root string) string { return root + "/" + elemVersions }

// FreezePath exists while the tree is frozen.
func FreezePath(root string) string { return freezePath(root) }

// Absent makes a multi fail with NodeExists when the znode exists.
func Absent(path string) []session.Op {
	return []session.Op{session.CreateOp(path, nil, session.Persistent), session.DeleteOp(path, -1)}
}

// ErrOpen says that a rollout of the tree is open, so no other publish is allowed.
var ErrOpen = errors.New("another rollout is open")

// GatePath is the znode with the state of a rollout.
func GatePath(root, name string) string { return RolloutsPath(root) + "/" + name + "/gate" }

// CloseOps returns operations that end the open rollout in the caller's
// transaction. An emergency ends any rollout, another publish only a dry run. If no
// rollout is open, the operations make the transaction fail when one is opened
// meanwhile. If the open rollout must stay, the error matches [ErrOpen].
func CloseOps(ctx context.Context, s *session.Session, root, by string, emergency bool) ([]session.Op, error) {
	for range maxTries {
		name, _, err := s.Get(ctx, CurrentPath(root))
		if errors.Is(err, session.ErrNoNode) {
			return Absent(CurrentPath(root)), nil
		}
		if err != nil {
			return nil, fmt.Errorf("config %s: read the open rollout: %w", root, err)
		}
		ops, err := closeOps(ctx, s, root, string(name), by, emergency)
		if err != nil || ops != nil {
			return ops, err
		}
	}
	return nil, fmt.Errorf("config %s: rollouts are opened and closed too fast", root)
}

// closeOps returns the operations for one rollout; nil: it is not the open one any
// more. While its gate is not closed, it is the open one.
func closeOps(ctx context.Context, s *session.Session, root, name, by string, emergency bool) ([]session.Op, error) {
	paths := []string{RolloutsPath(root) + "/" + name, GatePath(root, name)}
	read, err := s.GetMany(ctx, paths)
	if err = cmp.Or(err, firstError(read)); errors.Is(err, session.ErrNoNode) {
		return nil, nil // a dry run, deleted meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("config %s: read rollout %s: %w", root, name, err)
	}
	var proposal struct {
		Dry bool `json:"dry"`
	}
	gate := map[string]any{}
	var was struct {
		GateState

		Past []GateState `json:"past"`
	}
	if err = cmp.Or(json.Unmarshal(read[0].Data, &proposal), json.Unmarshal(read[1].Data, &gate), json.Unmarshal(read[1].Data, &was)); err != nil {
		return nil, fmt.Errorf("config %s: rollout %s is not understood: %w", root, name, err)
	}
	if gate["state"] == "closed" {
		return nil, nil
	}
	if !proposal.Dry && !emergency {
		return nil, fmt.Errorf("config %s: %w: %s", root, ErrOpen, name)
	}
	result := map[bool]string{true: "replaced", false: "superseded"}[proposal.Dry]
	was.At = time.UnixMilli(read[1].Stat.Mtime)
	gate["state"], gate["result"], gate["by"], gate["past"] = "closed", result, by, AddPast(was.Past, was.GateState)
	delete(gate, "paused")
	data, err := json.Marshal(gate)
	if err != nil {
		return nil, err
	}
	return []session.Op{session.SetOp(paths[1], data, read[1].Stat.Version), session.DeleteOp(CurrentPath(root), -1)}, nil
}

func firstError(results []session.Result) error {
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// ShardNames are the names of all shards, in order.
func ShardNames() []string {
	names := make([]string, Shards)
	for i := range names {
		names[i] = fmt.Sprintf("%02x", i)
	}
	return names
}

// SubscriberIDs are the ids of the subscribed agents by their shard, each list
// sorted; a shard without any is left out.
func SubscriberIDs(ctx context.Context, s *session.Session, root string) (map[string][]string, error) {
	names := ShardNames()
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = ShardPath(root, name)
	}
	lists, err := s.ChildrenMany(ctx, paths)
	if err != nil {
		return nil, fmt.Errorf("config %s: list subscribers: %w", root, err)
	}
	ids := map[string][]string{}
	for i, l := range lists {
		if l.Err != nil && !errors.Is(l.Err, session.ErrNoNode) {
			return nil, fmt.Errorf("config %s: list subscribers: %w", root, l.Err)
		}
		if len(l.Names) > 0 {
			ids[names[i]] = slices.Sorted(slices.Values(l.Names))
		}
	}
	return ids, nil
}

// createShards creates the missing shards. An agent creates its own shard when it
// is missing.
func (p *publisher) createShards(ctx context.Context) error {
	names := ShardNames()
	if _, ok, err := p.s.Exists(ctx, ShardPath(p.cfg.Path, names[Shards-1])); err != nil || ok {
		return err
	}
	if err := p.s.CreateParents(ctx, ShardPath(p.cfg.Path, names[0])); err != nil {
		return fmt.Errorf("config %s: %w", p.cfg.Path, err)
	}
	ops := []session.Op{p.guard}
	for _, name := range names {
		ops = append(ops, session.CreateOp(ShardPath(p.cfg.Path, name), nil, session.Persistent))
	}
	return createAll(ctx, p.s, ops)
}

// createAll runs ops, a guard followed by creates, in one multi. It ignores znodes
// that exist already.
func createAll(ctx context.Context, s *session.Session, ops []session.Op) error {
	for tries := 0; len(ops) > 1; {
		_, err := s.Multi(ctx, ops...)
		var multi *session.MultiError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &multi) && multi.Index > 0 && errors.Is(err, session.ErrNodeExists):
			ops = slices.Delete(ops, multi.Index, multi.Index+1) // A lost reply of our own.
		case errors.Is(err, session.ErrUnknown) && tries < maxTries:
			tries++
		default:
			return fmt.Errorf("create %s: %w", ops[1].Path(), err)
		}
	}
	return nil
}
