package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// States of a service as status shows them.
const (
	StateUnknown     = "unknown"     // checks have not risen yet
	StateRegistered  = "registered"  // the member is in ZooKeeper
	StateKept        = "kept"        // found from before; checks have not decided yet
	StateWaiting     = "waiting"     // healthy, and not registered yet
	StateBlocked     = "blocked"     // the znode of another owner is in the way
	StateCritical    = "critical"    // checks have fallen
	StateMaintenance = "maintenance" // taken out on purpose
	StateDraining    = "draining"    // leaving
	StateLeft        = "left"        // gone for good
)

// ServiceStatus is the state of a service.
type ServiceStatus struct {
	Name        string        `json:"name"`             // of the service
	Groups      []string      `json:"groups"`           // znodes that its members are in
	Format      string        `json:"format"`           // of the member, see [Encode]
	Address     string        `json:"address"`          // host:port as registered
	State       string        `json:"state"`            // of the group where it is farthest from the wanted state
	Since       time.Time     `json:"since,omitzero"`   // of the state
	Registered  bool          `json:"registered"`       // in all groups
	Nodes       []string      `json:"nodes,omitempty"`  // paths of the members' znodes
	Weight      *int          `json:"weight,omitempty"` // as registered
	Error       string        `json:"error,omitempty"`  // why it is not in the wanted state
	Maintenance *Maintenance  `json:"maintenance,omitempty"`
	Checks      []CheckStatus `json:"checks"` // each as it is now
}

// Registrar keeps one service registered in its groups while its checks pass. Its checks
// run as long as the settings ([Registrar.RunChecks]), its znodes live as long as
// the session ([Registrar.Run]). All methods may be called from any goroutine.
type Registrar struct {
	cfg      ServiceConfig
	log      *slog.Logger
	checkers []*checker
	places   []*place // one for each group
	fault    error    // the configuration is not valid

	load sync.Once
	kept *files.Store[Maintenance] // in StateFile

	mu    sync.Mutex  // guards the fields below
	maint Maintenance // in effect
	// risen is when the checks rose and the weight began to warm up; zero: the
	// checks have not risen, or the member was up before and is warm.
	risen    time.Time
	wasUp    bool      // the checks had risen at the last look
	left     time.Time // when leaving began; zero: it has not
	gone     chan struct{}
	joined   chan struct{}
	heir     *Registrar // of the next settings, which counts when this one has ended
	running  int
	session  *session.Session // of the latest Run
	sessions int              // sessions that Run has seen
	earlier  map[int64]bool   // their ids
	status   ServiceStatus
}

// NewRegistrar returns the registrar of a service. It does no I/O and starts
// nothing. Run reports an invalid cfg.
func NewRegistrar(cfg ServiceConfig) *Registrar {
	r := &Registrar{
		cfg: cfg, log: logger(cfg.Logger), fault: cfg.Validate(), gone: make(chan struct{}), joined: make(chan struct{}),
		earlier: make(map[int64]bool),
		status:  ServiceStatus{Name: cfg.Name, Groups: cfg.Groups, Format: cfg.format(), State: StateUnknown},
	}
	for _, group := range cfg.Groups {
		r.places = append(r.places, &place{r: r, group: group, wake: make(chan struct{}, 1), state: StateUnknown})
	}
	for _, c := range cfg.Checks {
		if c.Validate() == nil { // otherwise it is the fault
			r.checkers = append(r.checkers, newChecker(cfg.Name, c, cfg.Run, cfg.Metrics, func() { r.wakeRun(); r.changed() }))
		}
	}
	if r.cfg.Previous = nil; cfg.Previous != nil {
		r.inherit(cfg.Previous)
	}
	return r
}

// changed calls the configured callback, because the status may have changed.
func (r *Registrar) changed() {
	if r.cfg.Changed != nil {
		r.cfg.Changed()
	}
}

func (r *Registrar) wakeRun() {
	for _, p := range r.places {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

func (r *Registrar) inherit(old *Registrar) {
	for _, k := range r.checkers {
		for _, o := range old.checkers {
			if reflect.DeepEqual(k.cfg, o.cfg) {
				k.inherit(o)
			}
		}
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.risen, r.wasUp, r.sessions, r.maint = old.risen, old.wasUp, old.sessions, old.maint
	maps.Copy(r.earlier, old.earlier)
	old.heir = r
	name, sequential := r.cfg.nodeName(r.cfg.MemberID)
	was, wasSequential := old.cfg.nodeName(old.cfg.MemberID)
	for _, p := range r.places {
		i := slices.IndexFunc(old.places, func(o *place) bool { return o.group == p.group })
		if i >= 0 && name == was && sequential == wasSequential {
			if p.from = old.places[i]; p.from.from != nil { // It waits, too.
				p.from, p.from.from, p.from.ceded = p.from.from, nil, true
			}
		}
	}
	old.wakeRun()
}

// Joined is closed when the member has been registered in all groups.
func (r *Registrar) Joined() <-chan struct{} { return r.joined }

// RunChecks runs the checks until ctx ends, independent of sessions. A program that calls
// Run instead of Serve needs it, too.
func (r *Registrar) RunChecks(ctx context.Context) error {
	r.loadState()
	var wg sync.WaitGroup
	for _, k := range r.checkers {
		wg.Go(func() { k.run(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	return nil
}

// Run keeps the member registered in session s until ctx or the session ends. It
// does not touch the znodes when it returns, so a hand-over writes nothing;
// [Registrar.Drain] removes them. It returns nil when ctx ends, the session's
// cause when that has ended, and an error when the configuration is invalid.
func (r *Registrar) Run(ctx context.Context, s *session.Session) error {
	if r.fault != nil {
		return fmt.Errorf("service %s: %w", r.cfg.Name, r.fault)
	}
	if s = session.Usable(s, "/"); s.Context().Err() != nil {
		return context.Cause(s.Context())
	}
	r.loadState()
	r.mu.Lock()
	again := r.sessions > 0 && !r.earlier[s.ID()] // it is not the first session
	r.sessions++
	r.running++
	r.earlier[s.ID()], r.session = true, s
	r.mu.Unlock()
	defer r.exit()
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, p := range r.places {
		wg.Go(func() {
			if err := p.run(within, s, again && !s.Resumed()); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	select { // All groups may be given up.
	case <-within.Done():
	case <-s.Done():
	}
	return mirror.Ended(ctx, s, context.Cause(within))
}

func (r *Registrar) exit() {
	defer r.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	r.status.Registered = false
	for _, p := range r.places {
		p.registered = false // One that leaves does not register in the next session to show it.
	}
	r.finishLeaving()
	r.cfg.Metrics.service(r.cfg.Name, r.heir != nil && r.heir.Status().Registered)
}

// Report gives the ttl check of that name its state: pass, warn or fail. The
// name may be empty when the service has one ttl check. It waits for the check
// to take the report, at most until ctx ends.
func (r *Registrar) Report(ctx context.Context, check string, state Report, output string) error {
	meant := slices.DeleteFunc(slices.Clone(r.checkers), func(k *checker) bool {
		return k.cfg.Name != check && (check != "" || k.cfg.Kind != CheckTTL)
	})
	switch {
	case len(meant) == 1:
		return meant[0].report(ctx, state, output)
	case check != "":
		return fmt.Errorf("service %s has no check %q", r.cfg.Name, check)
	case len(meant) == 0:
		return fmt.Errorf("service %s has no ttl check", r.cfg.Name)
	}
	return fmt.Errorf("service %s has %d ttl checks: name one", r.cfg.Name, len(meant))
}

// Maintenance takes the service out of use (on) or back in. It ends by itself at
// until; zero means that it lasts until it is switched off.
func (r *Registrar) Maintenance(on bool, reason string, until time.Time) error {
	return r.SetMaintenance(Maintenance{On: on, Reason: reason, Until: until})
}

// SetMaintenance is [Registrar.Maintenance] with all options. It saves the state in
// StateFile before the state takes effect.
func (r *Registrar) SetMaintenance(m Maintenance) error {
	r.loadState()
	if m.On && m.Since.IsZero() {
		m.Since = time.Now()
	}
	if m.On && m.Drain && m.DrainFor == 0 {
		m.DrainFor = view.Seconds(r.cfg.Drain)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.kept.Change(func(kept *Maintenance) files.Write {
		*kept = m
		return files.WriteSave
	})
	if err != nil {
		return fmt.Errorf("service %s: keep maintenance: %w", r.cfg.Name, err)
	}
	r.maint = m
	log := r.log.With("service", r.cfg.Name, "on", m.On, "reason", m.Reason)
	if !m.Until.IsZero() {
		log = log.With("until", m.Until)
	}
	log.Info("maintenance changed")
	r.wakeRun()
	return nil
}

func (r *Registrar) loadState() {
	r.load.Do(func() {
		dir, name := filepath.Split(r.cfg.StateFile)
		if dir == "" && name != "" {
			dir = "."
		}
		var err error
		if r.kept, err = files.OpenStore[Maintenance](dir, name, nil); err != nil {
			r.log.Error("cannot read the maintenance state", "service", r.cfg.Name, "err", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kept.Read(func(m Maintenance) {
			if m.On { // otherwise that of the previous settings continues
				r.maint = m
			}
		})
	})
}

// Drain makes the member leave. It shows the member as draining for the configured
// time, then deletes its znodes. It returns when they are gone or ctx ends.
// Without a running Run it returns at once; the member then ends with its session.
// A drained Registrar cannot register again: create a new one.
func (r *Registrar) Drain(ctx context.Context) error {
	r.mu.Lock()
	if r.left.IsZero() {
		r.left = time.Now()
	}
	r.finishLeaving()
	r.mu.Unlock()
	r.wakeRun()
	select {
	case <-r.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain service %s: %w", r.cfg.Name, context.Cause(ctx))
	}
}

// Serve does all that a service needs in one call. It runs the checks and keeps the
// member registered in each session of m. When ctx ends, it shows the member as
// draining, removes it and returns nil. It returns an error when it cannot
// continue. The Manager's Run must be running until Serve has returned.
func (r *Registrar) Serve(ctx context.Context, m *session.Manager) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.RunChecks(life) })
	stop := context.AfterFunc(ctx, func() {
		bounded, cancel := context.WithTimeout(life, r.cfg.Drain+serveMargin)
		defer cancel()
		if err := r.Drain(bounded); err != nil && life.Err() == nil {
			r.log.Warn("service did not drain", "service", r.cfg.Name, "err", err)
		}
		end()
	})
	err := m.Each(life, r.Run)
	if !stop() {
		<-life.Done()
		err = nil
	}
	end()
	wg.Wait()
	return err
}

// serveMargin is how long Serve waits for the removal of a member beyond its
// drain time.
const serveMargin = 5 * time.Second

// finishLeaving closes gone once, when the member leaves and no group has it any more.
// r.mu is held.
func (r *Registrar) finishLeaving() {
	stays := func(p *place) bool { return !p.left && !p.ceded }
	if r.left.IsZero() || r.running > 0 && slices.ContainsFunc(r.places, stays) {
		return
	}
	select {
	case <-r.gone:
	default:
		close(r.gone)
	}
}

// Status returns the current state.
func (r *Registrar) Status() ServiceStatus {
	checks := r.checks()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	// The member is gone with its session, even before Run has noticed.
	s.Registered = s.Registered && r.session.Context().Err() == nil
	s.Checks = checks
	if r.maint.Active(time.Now()) {
		s.Maintenance = new(r.maint)
	}
	if r.fault != nil {
		s.Error = r.fault.Error()
	}
	return s
}

// MarshalJSON encodes the status of the registrar.
func (r *Registrar) MarshalJSON() ([]byte, error) { return json.Marshal(r.Status()) }

func (r *Registrar) checks() []CheckStatus {
	return lists.Map(r.checkers, (*checker).snapshot)
}
