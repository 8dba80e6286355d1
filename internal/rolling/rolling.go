// Package rolling lets a few hosts of the fleet at a time reload a bundle, and
// stops all others at the first failure.
//
//	/zkagent/rolling                              JSON: the latest halts that were lifted, and by whom
//	/zkagent/rolling/<bundle>                     data = permits ("3", "10%"); Curator's SemaphoreV2
//	/zkagent/rolling/<bundle>/leases/_c_...       ephemeral, one per permit
//	/zkagent/rolling/<bundle>-halt                persistent, JSON: host, reason, time
//	/zkagent/rolling/<bundle>-hosts/<agent id>    ephemeral: this agent's settings have the bundle
//
// Steps: take a lease; then in one transaction check that the lease is there and
// that no halt is (create and delete it). Only then the host changes its files.
// A host that fails notes that on its disk and puts its old files back. It creates the
// halt before it gives its lease back, and after a crash before its session's leases go.
//
// Guaranteed: while sessions live, at most K hosts are between start and end.
// After a halt no host starts. A newer version lifts no halt; only [Clear] does.
// A share is of the hosts that have the bundle now, counted at each take. A
// changed number is in force when no host holds a permit.
//
// Not guaranteed: a host whose session ends in the middle of its turn continues
// without its permit, because its files have changed already.
package rolling

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// Root is where the semaphores stand.
const Root = "/zkagent/rolling"

// The ends of names that no bundle with a rolling reload may have.
const (
	haltEnd  = "-halt"
	hostsEnd = "-hosts"
)

// Reserved reports whether the name of a bundle is that of another one's halt
// or hosts.
func Reserved(bundle string) bool {
	return strings.HasSuffix(bundle, haltEnd) || strings.HasSuffix(bundle, hostsEnd)
}

func path(bundle string) string { return session.JoinPath(Root, files.Name(bundle)) }

// HostPath is the znode by which an agent says that its settings have a bundle.
func HostPath(bundle, agent string) string {
	return session.JoinPath(path(bundle)+hostsEnd, files.Name(agent))
}

// Halt says why no host starts a rolling reload of a bundle.
type Halt struct {
	Bundle string    `json:"bundle"`
	Host   string    `json:"host"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

const maxReason = 512

// Config describes one host's part.
type Config struct {
	Agent  string
	Bundle string
	// Permits is a number, or a share such as "10%".
	Permits string
	// Halted is called when the host must wait because of a halt, and with nil
	// when it no longer must.
	Halted func(*Halt)
	Logger *slog.Logger
}

// Permit is the right to reload a bundle now.
type Permit struct {
	s    *session.Session
	cfg  Config
	hold *recipe.Hold
}

// Acquire waits until this host may start.
func Acquire(ctx context.Context, s *session.Session, cfg Config) (*Permit, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Halted == nil {
		cfg.Halted = func(*Halt) {}
	}
	if err := s.CreateParents(ctx, path(cfg.Bundle)); err != nil {
		return nil, err
	}
	m := recipe.NewSemaphore(s, recipe.SemaphoreConfig{
		Path: path(cfg.Bundle), Data: []byte(cfg.Agent), Logger: cfg.Logger, Text: cfg.Permits,
		Permits: func(ctx context.Context, text string) (int, error) { return permits(ctx, s, cfg.Bundle, text) },
	})
	for {
		if err := awaitNoHalt(ctx, s, cfg); err != nil {
			return nil, err
		}
		hold, err := m.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		p := &Permit{s, cfg, hold}
		err = p.start(ctx)
		if err == nil {
			return p, nil
		}
		if failed := p.releaseLease(ctx); failed != nil {
			cfg.Logger.Warn("cannot return the permit", "template", cfg.Bundle, "err", failed)
		}
		if !errors.Is(err, session.ErrNodeExists) {
			return nil, err
		}
	}
}

// start is the transaction that lets this host begin.
func (p *Permit) start(ctx context.Context) error {
	halt := path(p.cfg.Bundle) + haltEnd
	for {
		_, err := p.s.Multi(ctx, p.hold.Guard(), session.CreateOp(halt, nil, session.Persistent), session.DeleteOp(halt, -1))
		if !errors.Is(err, session.ErrUnknown) {
			return err
		}
		// Whether it was applied or not, nothing stands: ask again.
	}
}

func awaitNoHalt(ctx context.Context, s *session.Session, cfg Config) error {
	for {
		_, there, watch, err := s.ExistsW(ctx, path(cfg.Bundle)+haltEnd)
		if err != nil {
			return err
		}
		if !there {
			watch.Stop()
			cfg.Halted(nil)
			return nil
		}
		h, _, err := read(ctx, s, path(cfg.Bundle)+haltEnd)
		if err == nil {
			cfg.Halted(h)
		}
		if err == nil || errors.Is(err, session.ErrNoNode) {
			err = s.WaitAny(ctx, watch)
		}
		watch.Stop()
		if err != nil {
			return err
		}
	}
}

// Release gives the permit back. With a failure it halts the bundle first, on all
// hosts. It tries that until ctx ends, over outages and in the session of the
// moment: without the halt other hosts would put the same files in use.
func (p *Permit) Release(ctx context.Context, sessions func(context.Context) (*session.Session, error), failed *Halt) error {
	if failed == nil {
		return p.releaseLease(ctx)
	}
	for failures := 1; ; failures++ {
		err := p.halt(ctx, sessions, failed)
		if err == nil {
			return p.releaseLease(ctx)
		}
		err = fmt.Errorf("halt the rolling reload of %s: %w", p.cfg.Bundle, err)
		if failures == 1 {
			p.cfg.Logger.Warn("the other hosts are not halted yet", "template", p.cfg.Bundle, "err", err)
		}
		if session.ActionFor(err) == session.GiveUp || !pace.Sleep(ctx, pace.Backoff(failures, 100*time.Millisecond, 5*time.Second)) {
			// The lease stays until the session ends: no other host starts in our place.
			return err
		}
	}
}

// halt tries once to halt the bundle.
func (p *Permit) halt(ctx context.Context, sessions func(context.Context) (*session.Session, error), failed *Halt) error {
	ctx, cancel := context.WithTimeout(ctx, p.s.Timeout())
	defer cancel()
	s, err := sessions(ctx)
	if err != nil {
		return err
	}
	return Stop(ctx, s, *failed)
}

func (p *Permit) releaseLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.s.Timeout())
	defer cancel()
	if err := p.hold.Release(ctx); !errors.Is(err, recipe.ErrNotHeld) {
		return err
	}
	return nil // The lease ran out in an outage. Its znode goes all the same.
}

// Stop halts a bundle on all hosts. A halt that stands already is as good. A halt that
// somebody has lifted is not made again.
func Stop(ctx context.Context, s *session.Session, h Halt) error {
	if len(h.Reason) > maxReason {
		h.Reason = strings.ToValidUTF8(h.Reason[:maxReason], "")
	}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	for {
		lifted, err := LiftedHalts(ctx, s)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(lifted, func(l Lifted) bool {
			return l.Bundle == h.Bundle && l.Host == h.Host && l.Time.Equal(h.Time)
		}) {
			return nil
		}
		_, _, err = s.Create(ctx, path(h.Bundle)+haltEnd, data, session.Persistent)
		switch {
		case errors.Is(err, session.ErrNodeExists):
			return nil
		case !errors.Is(err, session.ErrUnknown):
			return err
		}
	}
}

func read(ctx context.Context, s *session.Session, path string) (*Halt, session.Stat, error) {
	data, st, err := s.Get(ctx, path)
	if err != nil {
		return nil, st, err
	}
	h := &Halt{}
	if json.Unmarshal(data, h) != nil || h.Bundle == "" {
		h = &Halt{Bundle: strings.TrimSuffix(path[len(Root)+1:], haltEnd), Reason: string(data), Time: time.UnixMilli(st.Ctime)}
	}
	return h, st, nil
}

// Halts lists the halts of all bundles.
func Halts(ctx context.Context, s *session.Session) ([]Halt, error) {
	names, _, err := s.Children(ctx, Root)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var list []Halt
	for _, name := range names {
		if !strings.HasSuffix(name, haltEnd) {
			continue
		}
		switch h, _, err := read(ctx, s, session.JoinPath(Root, name)); {
		case err == nil:
			list = append(list, *h)
		case !errors.Is(err, session.ErrNoNode):
			return nil, err
		}
	}
	return list, nil
}

// Lifted is a halt that somebody lifted.
type Lifted struct {
	Halt

	By string    `json:"by"`
	At time.Time `json:"at"`
}

const maxLifted = 20

// Clear lifts the halt of a bundle, and notes who did. Without a halt the error
// matches session.ErrNoNode.
func Clear(ctx context.Context, s *session.Session, bundle, by string) error {
	lost := false
	for {
		// First the lifted halts: a halt that was made again has the version of the first
		// one, but whoever lifted the first one has changed these.
		lifted, root, err := readLifted(ctx, s)
		if err != nil {
			return err
		}
		h, st, err := read(ctx, s, path(bundle)+haltEnd)
		if lost && errors.Is(err, session.ErrNoNode) {
			return nil
		}
		if err != nil {
			return err
		}
		lifted = append(lifted, Lifted{Halt: *h, By: by, At: time.Now().UTC()})
		data, err := json.Marshal(map[string][]Lifted{"lifted": lifted[max(0, len(lifted)-maxLifted):]})
		if err != nil {
			return err
		}
		_, err = s.Multi(ctx, session.DeleteOp(path(bundle)+haltEnd, st.Version), session.SetOp(Root, data, root.Version))
		if !errors.Is(err, session.ErrUnknown) && !errors.Is(err, session.ErrBadVersion) {
			return err
		}
		lost = lost || errors.Is(err, session.ErrUnknown)
	}
}

// LiftedHalts returns the latest halts that were lifted, oldest first.
func LiftedHalts(ctx context.Context, s *session.Session) ([]Lifted, error) {
	lifted, _, err := readLifted(ctx, s)
	if errors.Is(err, session.ErrNoNode) {
		return nil, nil
	}
	return lifted, err
}

// readLifted reads the lifted halts. Data of another tool count as none.
func readLifted(ctx context.Context, s *session.Session) ([]Lifted, session.Stat, error) {
	var p struct {
		Lifted []Lifted `json:"lifted"`
	}
	data, st, err := s.Get(ctx, Root)
	if err != nil || json.Unmarshal(data, &p) != nil {
		return nil, st, err
	}
	return p.Lifted, st, nil
}

// permits is K as a number, of the hosts that have the bundle now.
func permits(ctx context.Context, s *session.Session, bundle, text string) (int, error) {
	share, err := pace.ParseShare(text)
	if err != nil {
		return 0, fmt.Errorf("permits: %w", err)
	}
	hosts, _, err := s.Children(ctx, path(bundle)+hostsEnd)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return 0, err
	}
	return share.Of(len(hosts)), nil
}

// Hosts keeps this agent among the hosts of a bundle, for one session.
func Hosts(bundle, agent string, log *slog.Logger) *recipe.Node {
	return recipe.NewNode(recipe.NodeConfig{Path: HostPath(bundle, agent), Data: []byte(agent), Logger: log})
}
