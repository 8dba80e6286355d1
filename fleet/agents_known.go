package fleet

import (
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

// editKnown changes the znode of a known host. edit returns false when nothing is to be
// written; found is false for a host that is not known, which is created.
func editKnown(ctx context.Context, s *session.Session, id string, edit func(k *knownHost, found bool) bool) error {
	path := knownAs(id)
	return transact(ctx, s, path, func(bool) ([]session.Op, error) {
		var k knownHost
		data, st, err := s.Get(ctx, path)
		found := !errors.Is(err, session.ErrNoNode)
		if err != nil && found {
			return nil, err
		}
		_ = json.Unmarshal(data, &k) // garbage: without its past
		switch {
		case !edit(&k, found):
			return nil, nil
		case found && !k.Lost.IsZero(): // a host that is back reads this znode and may not change it
			return append(absent(AgentPath(id)), session.SetOp(path, encode(k), st.Version)), nil
		case found:
			return []session.Op{session.SetOp(path, encode(k), st.Version)}, nil
		}
		return []session.Op{session.CreateOp(path, encode(k), session.Persistent)}, s.CreateParents(ctx, path)
	})
}

// missed notes that a host is missing. It tries once, because a host that is back makes
// every try fail, and ignores errors: not every reader may write.
func missed(ctx context.Context, s *session.Session, id string, now time.Time) time.Time {
	at, tried := now.UTC().Truncate(time.Second), false
	_ = editKnown(ctx, s, id, func(k *knownHost, found bool) bool {
		again := tried
		k.Lost, tried = at, true
		return found && !again
	})
	return at
}

// readGone reads hosts without a record, and notes when each was first missed.
func readGone(ctx context.Context, s *session.Session, list []string) ([]HostStatus, error) {
	var hosts []HostStatus
	err := getEach(ctx, s, list, knownAs, func(id string, r session.Result) error {
		var k knownHost
		_ = json.Unmarshal(r.Data, &k) // on garbage, show the host without its past
		h := HostStatus{ID: id, Record: Record{Health: Stopped, At: k.Stopped}, Detail: "its agent was stopped"}
		if k.Stopped.IsZero() {
			h.Health, h.Detail, h.At = Lost, "its session has ended without a stop", k.Lost
			if k.Lost.IsZero() && r.Err == nil {
				h.At = missed(ctx, s, id, time.Now())
			}
		}
		hosts = append(hosts, h)
		return nil
	})
	return hosts, err
}

// Forget removes a stopped or lost host from the known hosts.
func Forget(ctx context.Context, s *session.Session, id string) error {
	switch err := forget(ctx, s, id, -1); {
	case errors.Is(err, session.ErrNodeExists):
		return fmt.Errorf("forget %s: %w", id, ErrLive)
	case err != nil:
		return fmt.Errorf("forget %s: %w", id, err)
	}
	return nil
}

// forget fails with session.ErrNodeExists when the host has a record: the znode of a
// host that is known again may have the version of the first one.
func forget(ctx context.Context, s *session.Session, id string, version int32) error {
	err := s.CreateParents(ctx, AgentPath(id))
	if err == nil {
		_, err = s.Multi(ctx, append(absent(AgentPath(id)), session.DeleteOp(knownAs(id), version))...)
	}
	return err
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
		err = getEach(ctx, s, known, knownAs, func(id string, r session.Result) error {
			var k knownHost
			_ = json.Unmarshal(r.Data, &k)
			switch {
			case r.Err != nil:
				return r.Err
			case k.gone().IsZero():
				missed(ctx, s, id, now)
			case now.Sub(k.gone()) >= ForgetAfter:
				if err := forget(ctx, s, id, r.Stat.Version); !raced(err) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
