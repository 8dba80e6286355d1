package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/zkagent/zkagent/session"
)

// The znodes of rollouts, as far as versions have to do with them:
//
//	<root>/rollouts/current          the name of the open rollout
//	<root>/rollouts/r-<S>            its proposal
//	<root>/rollouts/r-<S>/gate       how far it is
//	<root>/rollouts/shards/<h>       the call of a shard of the subscribers
//	<root>/rollouts/shards/<h>/<id>  (E) a subscription
//
// h is the first six bits of the SHA-256 of the agent's id, in two hexadecimal
// digits. Package fleet knows the rest.

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

// shardNames are the names of all shards, in order.
func shardNames() []string {
	names := make([]string, Shards)
	for i := range names {
		names[i] = fmt.Sprintf("%02x", i)
	}
	return names
}

// createShards creates the shards that do not exist yet. Agents create their
// own when it is missing.
func (p *publisher) createShards(ctx context.Context) error {
	names := shardNames()
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

// createAll creates znodes in one multi behind its first operation; one that
// exists already does not matter.
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
