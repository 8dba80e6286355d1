package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/zkagent/zkagent/view"
)

// Report is a state that a service reports to its ttl check.
type Report string

// Reports.
const (
	ReportPass Report = "pass"
	ReportWarn Report = "warn" // counts as good, and is shown
	ReportFail Report = "fail"
)

// CheckStatus is the state of one check as status shows it.
type CheckStatus struct {
	Name    string       `json:"name"` // label of the check
	Kind    string       `json:"kind"` // as in CheckConfig
	State   Verdict      `json:"state"`
	Since   time.Time    `json:"since,omitzero"`    // of the state
	Last    time.Time    `json:"last,omitzero"`     // latest result
	OK      bool         `json:"ok"`                // latest result
	Warning bool         `json:"warning,omitempty"` // of the latest run; the check passes
	Output  string       `json:"output"`            // of the latest result
	Exit    int          `json:"exit,omitempty"`    // of the latest result of a command
	Took    view.Seconds `json:"took_seconds"`      // how long the latest run lasted
	Results uint64       `json:"results"`           // count
}

// checker runs one check repeatedly and keeps its verdict. It lives as long as the
// settings, independent of sessions.
type checker struct {
	cfg     CheckConfig // with defaults
	check   Check       // nil for ttl
	service string
	metrics *Metrics
	jitter  func() float64 // 0..1
	changed func()         // called after each result, without mu

	reports chan CheckStatus // ttl

	mu     sync.Mutex // guards the fields below
	count  counter
	status CheckStatus
}

func newChecker(service string, c CheckConfig, run RunFunc, metrics *Metrics, changed func()) *checker {
	rise, fall := DefaultRise, DefaultFall
	if c.Kind == CheckTTL {
		rise, fall = 1, 1
	}
	c.Name = c.name()
	c.Interval = cmp.Or(max(c.Interval, 0), DefaultInterval)
	c.Timeout = cmp.Or(max(c.Timeout, 0), DefaultTimeout)
	c.Rise = cmp.Or(max(c.Rise, 0), rise)
	c.Fall = cmp.Or(max(c.Fall, 0), fall)
	c.Jitter = min(max(cmp.Or(c.Jitter, DefaultJitter), 0), 1)
	check, _ := NewCheck(c, run) // ttl has none
	return &checker{
		cfg: c, check: check, service: service, metrics: metrics, jitter: rand.Float64, changed: changed, reports: make(chan CheckStatus),
		count: counter{rise: c.Rise, fall: c.Fall}, status: CheckStatus{Name: c.Name, Kind: c.Kind},
	}
}

func (k *checker) run(ctx context.Context) {
	k.metrics.check(k.service, k.cfg.Name, k.snapshot().State)
	// Spread the first runs of many services a little.
	first := time.Duration(k.jitter() * k.cfg.Jitter * float64(k.cfg.Interval))
	if k.check == nil {
		first = k.next()
	}
	timer := time.NewTimer(first)
	defer timer.Stop()
	results := make(chan CheckStatus, 1) // size 1: a run that ignores its context can still send and end
	running, started := false, time.Time{}
	for {
		select {
		case <-ctx.Done():
			if running {
				awaitRun(results)
			}
			return
		case r := <-results:
			running = false
			k.add(r)
		case r := <-k.reports:
			timer.Reset(k.next())
			k.add(r)
		case <-timer.C:
			timer.Reset(k.next())
			switch {
			case k.check == nil:
				k.add(CheckStatus{Output: fmt.Sprintf("no report within %s", k.cfg.TTL)})
			case !running:
				running, started = true, time.Now()
				go func() { results <- k.once(ctx) }()
			case time.Since(started) > k.cfg.Timeout+k.cfg.Interval:
				// A run that ignores its timeout counts as failed once per
				// interval. No second run starts beside it.
				k.add(CheckStatus{Output: "the previous run has not ended yet"})
			}
		}
	}
}

// runGrace is how long a stopping checker waits for a run whose context has ended.
const runGrace = 2 * time.Second

// awaitRun waits for a run to end, for runGrace at most.
func awaitRun(results <-chan CheckStatus) {
	timer := time.NewTimer(runGrace)
	defer timer.Stop()
	select {
	case <-results:
	case <-timer.C:
	}
}

// next is how long to wait: for a report, or the interval with its jitter.
func (k *checker) next() time.Duration {
	if k.check == nil {
		return k.cfg.TTL
	}
	shift := (2*k.jitter() - 1) * k.cfg.Jitter / 2
	return max(time.Duration(float64(k.cfg.Interval)*(1+shift)), time.Millisecond)
}

func (k *checker) once(ctx context.Context) CheckStatus {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	start := time.Now()
	output, err := k.check.Run(ctx)
	if err != nil {
		output = err.Error() + "\n" + output
	}
	res := CheckStatus{OK: err == nil, Output: clip(output), Took: view.Seconds(time.Since(start))}
	if e, failed := errors.AsType[*exitError](err); failed {
		res.Exit = e.code
	}
	return res
}

func (k *checker) report(ctx context.Context, state Report, output string) error {
	if k.cfg.Kind != CheckTTL {
		return fmt.Errorf("check %q is of kind %s and takes no reports", k.cfg.Name, k.cfg.Kind)
	}
	if state != ReportPass && state != ReportWarn && state != ReportFail {
		return fmt.Errorf("state %q is not one of pass, warn, fail", state)
	}
	select {
	case k.reports <- CheckStatus{OK: state != ReportFail, Warning: state == ReportWarn, Output: clip(output)}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("report to check %q: %w", k.cfg.Name, errors.Join(ctx.Err(), errNotRunning))
	}
}

var errNotRunning = errors.New("checks do not run")

// add counts a result, and completes it to the state of the check.
func (k *checker) add(r CheckStatus) {
	k.mu.Lock()
	r.Name, r.Kind, r.Since, r.Last, r.Results = k.cfg.Name, k.cfg.Kind, k.status.Since, time.Now(), k.status.Results+1
	if k.count.add(r.OK) {
		r.Since = r.Last
	}
	r.State = k.count.verdict
	k.status = r
	k.mu.Unlock()
	k.metrics.check(k.service, k.cfg.Name, r.State)
	k.changed()
}

func (k *checker) inherit(old *checker) {
	old.mu.Lock()
	count, status := old.count, old.status
	old.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count, k.status = count, status
}

func (k *checker) snapshot() CheckStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Verdict is the result of a check over several runs.
type Verdict int

// Verdicts of a check.
const (
	Unknown  Verdict = iota // neither risen nor fallen yet
	Passing                 // risen
	Critical                // fallen
)

// String returns the verdict as status shows it.
func (v Verdict) String() string {
	return cmp.Or(map[Verdict]string{Passing: "passing", Critical: "critical"}[v], "unknown")
}

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. A word of a newer agent
// is unknown.
func (v *Verdict) UnmarshalText(text []byte) error {
	*v = map[string]Verdict{"passing": Passing, "critical": Critical}[string(text)]
	return nil
}

// counter is the hysteresis of a check. rise successes in a row make it passing,
// and fall failures in a row make it critical. Fewer leave the verdict unchanged.
// It starts as unknown, so that no member is registered before its service has
// worked.
type counter struct {
	rise, fall int
	verdict    Verdict
	run        int // results of the same kind in a row: > 0 good, < 0 bad
}

// add counts one result and reports whether the verdict changed.
func (c *counter) add(ok bool) bool {
	was := c.verdict
	if ok {
		c.run = max(c.run, 0) + 1
		if c.run >= c.rise {
			c.run, c.verdict = c.rise, Passing
		}
	} else {
		c.run = min(c.run, 0) - 1
		if -c.run >= c.fall {
			c.run, c.verdict = -c.fall, Critical
		}
	}
	return c.verdict != was
}
