package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Hosts whose agent does not run: the znodes of hosts that were seen once, and when they
// are forgotten.

// knownHost is the data of a host's znode below known.
type knownHost struct {
	First   time.Time `json:"first"`            // start of its first agent
	Stopped time.Time `json:"stopped,omitzero"` // a clean stop
	Lost    time.Time `json:"lost,omitzero"`    // when a reader first missed its record
}

func (k *knownHost) gone() time.Time {
	if !k.Stopped.IsZero() {
		return k.Stopped
	}
	return k.Lost
}

// readGone reads the known hosts that have no record. It notes the current time for
// each host that no reader has missed before.
func readGone(ctx context.Context, s *session.Session, list []string) ([]HostStatus, error) {
	if len(list) == 0 {
		return nil, nil
	}
	paths := make([]string, len(list))
	for i, id := range list {
		paths[i] = knownAs(id)
	}
	results, err := s.GetMany(ctx, paths)
	if err != nil {
		return nil, err
	}
	var hosts []HostStatus
	for i, r := range results {
		if errors.Is(r.Err, session.ErrNoNode) {
			continue // forgotten meanwhile
		}
		var k knownHost
		_ = json.Unmarshal(r.Data, &k) // on garbage, show the host without its past
		h := HostStatus{ID: list[i], Record: Record{Health: Stopped, At: k.Stopped}, Detail: "its agent was stopped"}
		if k.Stopped.IsZero() {
			h.Health, h.Detail = Lost, "its session has ended without a stop"
			if k.Lost.IsZero() && r.Err == nil {
				k.Lost = time.Now().UTC().Truncate(time.Second)
				note(ctx, s, paths[i], k, r.Stat.Version)
			}
			h.At = k.Lost
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// note stores the time at which a host was first missed. It ignores errors: the
// reader may have no right to write, or another reader was first.
func note(ctx context.Context, s *session.Session, path string, k knownHost, version int32) {
	if data, err := json.Marshal(k); err == nil {
		_, _ = s.Set(ctx, path, data, version)
	}
}

// Forget removes a stopped or lost host from the known hosts.
func Forget(ctx context.Context, s *session.Session, id string) error {
	if _, ok, err := s.Exists(ctx, AgentPath(id)); err != nil || ok {
		return cmp.Or(err, fmt.Errorf("forget %s: %w", id, ErrLive))
	}
	if err := s.Delete(ctx, knownAs(id), -1); err != nil {
		return fmt.Errorf("forget %s: %w", id, err)
	}
	return nil
}

// sweep forgets hosts that have been gone for ForgetAfter. An agent sweeps its own
// shard and the following ones, up to the next shard that has an agent. So every
// shard is swept, and in a large fleet each agent reads one or two shards.
func sweep(ctx context.Context, s *session.Session, id string, now time.Time) error {
	var first int
	if _, err := fmt.Sscanf(Shard(id), "%x", &first); err != nil {
		return err
	}
	for i := range Shards {
		h := fmt.Sprintf("%02x", (first+i)%Shards)
		live, err := namesBelow(ctx, s, AgentsPath, h)
		if err != nil || i > 0 && len(live) > 0 {
			return err
		}
		known, err := namesBelow(ctx, s, KnownPath, h)
		if err != nil {
			return err
		}
		known = slices.DeleteFunc(known, func(n string) bool { return slices.Contains(live, n) })
		if err := forgetOld(ctx, s, known, now); err != nil {
			return err
		}
	}
	return nil
}

func forgetOld(ctx context.Context, s *session.Session, list []string, now time.Time) error {
	for _, id := range list {
		data, st, err := s.Get(ctx, knownAs(id))
		if errors.Is(err, session.ErrNoNode) {
			continue
		}
		if err != nil {
			return err
		}
		var k knownHost
		_ = json.Unmarshal(data, &k)
		if k.gone().IsZero() {
			k.Lost = now.UTC().Truncate(time.Second)
			note(ctx, s, knownAs(id), k, st.Version)
			continue
		}
		if now.Sub(k.gone()) < ForgetAfter {
			continue
		}
		err = s.Delete(ctx, knownAs(id), st.Version)
		if err != nil && !errors.Is(err, session.ErrNoNode) && !errors.Is(err, session.ErrBadVersion) {
			return err
		}
	}
	return nil
}
