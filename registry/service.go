package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Formats that can be written.
const (
	FormatNerve     = "nerve"
	FormatServerSet = "serverset"
	FormatCurator   = "curator"
	FormatTemplate  = "template"
)

// The choices for a member whose checks have fallen.
const (
	OnCriticalRemove = "remove" // its znode is deleted
	OnCriticalStatus = "status" // its znode stays, with another status
)

// RunFunc runs one command to its end and returns its output (at most limit bytes)
// and its exit code. When ctx ends, it ends the command and everything that the
// command started. An error means that the command could not run.
type RunFunc func(ctx context.Context, args []string, limit int) (output string, code int, err error)

// ServiceConfig describes one service of this host: a member to register. Do not
// change it after the call of [NewRegistrar]. The zero value of an optional field
// means its default.
type ServiceConfig struct {
	Name   string   // label of the service block
	Groups []string // paths of the group znodes; it is a member of each

	// Address is a host name or IP address; empty: the local address that
	// reaches ZooKeeper.
	Address string
	Port    int            // 1..65535
	Ports   map[string]int // further named ports

	// Format is nerve (default), serverset, curator or template.
	Format string
	// MemberID names the instance, stable over restarts; empty: host name
	// and service name.
	MemberID string
	Weight   *int              // 0..256; nil: none is written
	Labels   map[string]string // written where the format has a place for them

	HAProxyServerOptions string         // nerve: haproxy_server_options
	Shard                *int           // serverset: shard
	Curator              CuratorOptions // curator
	// Template is the text/template of the data for format template, over a
	// [Registration].
	Template string
	// Sequential makes znodes of format template sequential:
	// "<member id>_" and a number.
	Sequential bool

	// ACL is for the member's znode; empty: the session's ACL.
	ACL []session.ACL `json:"-"`

	OnCritical string        // remove (default) or status
	Drain      time.Duration // how long a leaving member is shown as draining
	// WarmUp is how long the weight takes to climb from 1 to Weight after
	// the checks have risen; 0: at once.
	WarmUp time.Duration
	// Splay is the largest delay of the registration in a session that
	// follows a lost one.
	Splay time.Duration

	Checks []CheckConfig
	// StateFile keeps maintenance over restarts; empty: it is forgotten.
	StateFile string
	// Previous is the registrar of the settings that these replace. The new one takes over its
	// maintenance, the verdicts of unchanged checks, and each znode of the same name in the
	// same group once its checks have passed. Previous may run until after [Registrar.Joined];
	// it removes its other znodes when it leaves.
	Previous *Registrar `json:"-"`
	// Changed is called after each result of a check and each change of the state.
	// It must not block. It may be nil.
	Changed func() `json:"-"`

	Run     RunFunc      `json:"-"` // runs exec checks; nil: a plain one
	Logger  *slog.Logger `json:"-"` // nil: discard
	Metrics *Metrics     `json:"-"` // nil: none
}

var memberID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// Validate returns everything that is wrong with the configuration.
func (c ServiceConfig) Validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(len(c.Groups) == 0, "no group")
	for i, group := range c.Groups {
		err := session.ValidatePath(group)
		refuse(err != nil, "group: %w", err)
		refuse(group == "/", "group: the root cannot be a group")
		refuse(slices.Contains(c.Groups[:i], group), "group %q is there twice", group)
	}
	_, err := ParseHost(c.Address)
	refuse(c.Address != "" && err != nil, "address: %w", err)
	refuse(c.Port < 1 || c.Port > 65535, "port %d is not within 1 to 65535", c.Port)
	refuse(c.MemberID != "" && !memberID.MatchString(c.MemberID),
		"member id %q: only letters, digits and ._:- are allowed, at most 128", c.MemberID)
	refuse(!slices.Contains([]string{"", FormatNerve, FormatServerSet, FormatCurator, FormatTemplate}, c.Format),
		"format %q is not one of nerve, serverset, curator, template", c.Format)
	refuse(!slices.Contains([]string{"", OnCriticalRemove, OnCriticalStatus}, c.OnCritical),
		"on_critical %q is not one of remove, status", c.OnCritical)
	if len(errs) == 0 { // a sample shows the values that the format rejects
		_, err = c.registration(c.Groups[0], "192.0.2.1", "probe").encode(c.format())
		refuse(err != nil, "%w", err)
	}
	names := map[string]bool{}
	for _, check := range c.Checks {
		err := check.Validate()
		refuse(err != nil, "check %q: %w", check.name(), err)
		refuse(names[check.name()], "check %q is there twice: give them names", check.name())
		names[check.name()] = true
	}
	return errors.Join(errs...)
}

func (c ServiceConfig) format() string { return cmp.Or(c.Format, FormatNerve) }

// registration returns the registration of the service in a group when all is well.
func (c ServiceConfig) registration(group, host, id string) Registration {
	return Registration{
		Service: path.Base(group), ID: id, Host: host, Port: c.Port, Ports: c.Ports, Weight: c.Weight, Labels: c.Labels,
		HAProxyServerOptions: c.HAProxyServerOptions, Shard: c.Shard, Curator: c.Curator, Template: c.Template,
	}
}

// want is the wanted state in ZooKeeper at one moment.
type want struct {
	present bool
	status  string // of the member; empty while present: as it is
	weight  *int
	state   string    // as status shows it
	next    time.Time // when to look again though nothing happens; zero: never
	left    bool      // leaving is done once the znode is gone
}

// want decides from checks, maintenance and leaving. keep is the time until which
// an adopted member stays without a verdict; zero if none was adopted.
func (p *place) want(now, keep time.Time) want {
	r := p.r
	checks := r.checks()
	health := healthOf(checks)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rise(now, health, !keep.IsZero())
	switch {
	case !r.left.IsZero():
		if end := r.left.Add(max(r.cfg.Drain, leaveNotice)); now.Before(end) && p.registered {
			return want{present: true, status: view.StatusDraining, weight: r.cfg.Weight, state: StateDraining, next: end}
		}
		return want{state: StateLeft, left: true}
	case r.maint.Active(now):
		return p.wantMaintenance(now)
	case health == Passing:
		w := want{present: true, status: view.StatusUp, weight: r.cfg.Weight, state: StateRegistered}
		if r.cfg.Weight != nil && r.cfg.WarmUp > 0 {
			weight, next := warmWeight(*r.cfg.Weight, r.risen, now, r.cfg.WarmUp)
			w.weight, w.next = &weight, next
		}
		return w
	case health == Unknown && !keep.IsZero() && (now.Before(keep) || !slices.ContainsFunc(checks, func(c CheckStatus) bool { return !c.OK })):
		// At the end of keep the latest results decide.
		w := want{present: true, weight: r.cfg.Weight, state: StateKept}
		if now.Before(keep) {
			w.next = keep
		}
		return w
	case health == Critical && r.cfg.OnCritical == OnCriticalStatus && p.everUp:
		return want{present: true, status: view.StatusDown, weight: r.cfg.Weight, state: StateCritical}
	case health == Critical:
		return want{state: StateCritical}
	}
	return want{state: StateUnknown}
}

// rise follows the verdict. A member that rises warms up, unless it was found
// registered and so was up before.
func (r *Registrar) rise(now time.Time, health Verdict, found bool) {
	if health != Passing {
		if health == Critical {
			r.wasUp = false
		}
		return
	}
	if !r.wasUp {
		r.risen = now
		if found {
			r.risen = time.Time{}
		}
	}
	r.wasUp = true
}

// leaveNotice is the least time for which a leaving member is shown as draining, so
// that followers see that it leaves on purpose.
const leaveNotice = 100 * time.Millisecond

func (p *place) wantMaintenance(now time.Time) want {
	r := p.r
	w := want{state: StateMaintenance, next: r.maint.Until}
	end := r.maint.Since.Add(leaveNotice)
	if r.maint.Drain {
		end = r.maint.Since.Add(max(time.Duration(r.maint.DrainFor), leaveNotice))
	}
	switch {
	case now.Before(end) && p.registered:
		w.present, w.status, w.next = true, view.StatusDraining, earliest(w.next, end)
	case r.cfg.OnCritical == OnCriticalStatus && p.everUp:
		w.present, w.status = true, view.StatusMaintenance
	}
	w.weight = r.cfg.Weight
	return w
}

// healthOf combines the verdicts of all checks: passing if all are passing,
// critical if one is critical. A service without checks is passing.
func healthOf(checks []CheckStatus) Verdict {
	v := Passing
	for _, c := range checks {
		if c.State == Critical {
			return Critical
		}
		if c.State == Unknown {
			v = Unknown
		}
	}
	return v
}

// keepFor returns how long an adopted member is kept while its checks have no
// verdict yet.
func keepFor(checkers []*checker) time.Duration {
	var d time.Duration
	for _, k := range checkers {
		interval := k.cfg.Interval
		if k.cfg.Kind == CheckTTL {
			interval = k.cfg.TTL
		}
		d = max(d, interval*time.Duration(k.cfg.Fall))
	}
	return d
}

// warmUpSteps is the number of writes in a warm-up.
const warmUpSteps = 10

// warmWeight returns the current weight of a member that rose at from, and when the
// weight changes next (zero: never).
func warmWeight(weight int, from, now time.Time, d time.Duration) (int, time.Time) {
	if d <= 0 || weight <= 1 || from.IsZero() || now.Sub(from) >= d {
		return weight, time.Time{}
	}
	step := int(now.Sub(from) * warmUpSteps / d)
	next := from.Add((d*time.Duration(step+1) + warmUpSteps - 1) / warmUpSteps)
	return max(1, weight*step/warmUpSteps), next
}

// Maintenance takes a service out of use on purpose, independent of its checks.
type Maintenance struct {
	On     bool      `json:"on"`               // the member is out of service on purpose
	Reason string    `json:"reason,omitempty"` // for people
	Since  time.Time `json:"since,omitzero"`   // when it was switched on
	Until  time.Time `json:"until,omitzero"`   // zero: until it is switched off
	// Drain shows the member as draining before it is taken out, for DrainFor
	// (0: as long as the service drains when it leaves).
	Drain    bool         `json:"drain,omitempty"`
	DrainFor view.Seconds `json:"drain_for_seconds,omitempty"`
}

// Active reports whether it takes effect at a time.
func (m Maintenance) Active(now time.Time) bool {
	return m.On && (m.Until.IsZero() || now.Before(m.Until))
}
