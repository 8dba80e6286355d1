package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/filewatch"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/lastgood"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/renderlog"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/systemd"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// How the start may take.
const (
	defaultStartWait  = 500 * time.Millisecond // until the last known good view is taken
	defaultStartLimit = 10 * time.Second       // until the agent is ready without anything
	bootTime          = 10 * time.Minute       // after which a machine has started
)

// Agent is the agent of one host. New makes it, Run runs it; the other
// methods may be called at any time while Run runs.
type Agent struct {
	cfg     atomic.Pointer[Config]
	first   Config // as given to New
	log     *slog.Logger
	metrics *metrics
	conds   *condition.Set
	events  *event.Ring
	outages *files.Store[[]outage] // the last one may be open
	notify  *systemd.Notifier

	sessions *session.Manager
	sup      *supervisor
	left     *leftovers
	loop     *loop
	engine   *apply.Engine
	hooks    *hook.Engine
	web      *web.Server
	dns      *dns.Keeper

	process   process
	settings  settingsInUse
	wake      wake
	saved     *lastGoodSaver
	renders   *renderlog.Store
	hostMaint *hostMaintenance
	comparing chan struct{} // size 1: a preview reads the files in place, also while their disk hangs
}

// process is this life of the agent.
type process struct {
	started time.Time
	life    string // names this process, unlike any other
	once    sync.Once
	stop    chan stopMode // size 1: how to stop
	failed  chan error    // size 1: why Run is to end with an error

	mu     sync.Mutex // mu guards everything below.
	health fleet.Health
	since  time.Time // of health
}

// settingsInUse orders start, reloads and stop of what the settings want.
type settingsInUse struct {
	state atomic.Pointer[show.SettingsStatus] // how the last load went
	up    chan struct{}                       // closed when the first settings are in use
	down  chan struct{}                       // closed when Run has returned

	mu     sync.Mutex // mu is held by a start, reload or stop; it guards closed.
	closed bool       // the agent stops
}

// wake wakes the publishers of the record; each has size 1.
type wake struct {
	record   chan struct{} // the record of this host may be another
	services chan struct{} // a service, or its checks, changed
}

// New checks cfg and returns an Agent. It does no I/O but reading the state
// directory.
func New(cfg Config) (*Agent, error) {
	if cfg.ID == "" {
		return nil, errors.New("agent: the id is empty")
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	a := &Agent{
		first: cfg, log: log, events: event.NewRing(), notify: systemd.NewNotifier(),
		process:  process{started: time.Now(), life: rand.Text(), stop: make(chan stopMode, 1), failed: make(chan error, 1)},
		settings: settingsInUse{up: make(chan struct{}), down: make(chan struct{})},
		wake:     wake{record: make(chan struct{}, 1), services: make(chan struct{}, 1)}, comparing: make(chan struct{}, 1),
	}
	if cfg.StateDir != "" {
		if err := files.CheckOwn(cfg.StateDir); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		a.events.KeepOrders(cfg.StateDir, func(err error) { log.Warn("cannot keep who gave the orders", "err", err) })
	}
	var err error
	if a.outages, err = files.OpenStore[[]outage](cfg.StateDir, "outages.json", nil); err != nil {
		log.Warn("cannot read the past outages", "err", err)
	}
	reg := prometheus.NewRegistry()
	a.metrics = newMetrics(reg)
	a.metrics.reg = reg
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.metrics.info.WithLabelValues(cfg.Version).Set(1)
	a.conds = &condition.Set{Changed: a.conditionChanged, Reworded: func(c condition.Condition) {
		pace.Notify(a.wake.record)
		a.log.Debug("condition has a new text", "code", c.Code, "subject", c.Subject, "text", c.Text)
	}}
	zk := cfg.ZooKeeper
	zk.Logger, zk.Metrics, zk.Identity = log, a.metrics.of.session, cfg.ID
	zk.StateDir = cmp.Or(zk.StateDir, cfg.StateDir)
	if a.sessions, err = session.New(zk); err != nil {
		return nil, err
	}
	if a.hostMaint, err = openMaintenance(cfg.StateDir); err != nil {
		log.Error("cannot read the maintenance state", "err", err)
	}
	a.build(&cfg)
	a.use(&cfg)
	a.metrics.recordNow = a.record
	return a, nil
}

// build wires the parts; it starts nothing.
func (a *Agent) build(cfg *Config) {
	a.hooks = hook.New(hook.Options{
		Agent: cfg.ID, StateDir: cfg.StateDir, Log: a.log, Conditions: a.conds, Run: cfg.Run,
		State: func() hook.State {
			s := a.loop.snapshot.Load()
			return hook.State{View: s.view, Complete: s.complete, InPlace: func(src view.Source) bool { return !s.busy[src] && !s.refused[src] }, Next: s.next}
		},
		Events: a.events, Elected: a.leaderChanged,
		Count: func(hook, result string) { a.metrics.hooks.WithLabelValues(hook, result).Inc() },
	})
	a.engine = apply.New(apply.Options{
		AgentID: cfg.ID, StateDir: cfg.StateDir, Log: a.log, Conds: a.conds, Events: a.events, Observer: a.metrics,
		Run: a.plainRun, Fleet: reloadFleet{a.hooks, a}, Booted: proc.SystemAge() < bootTime,
	})
	a.loop = &loop{
		a: a, beat: func() { _ = a.notify.Watchdog() }, beats: systemd.WatchdogInterval(),
		startWait: defaultStartWait, startLimit: defaultStartLimit,
		calls: make(chan func()), results: make(chan applied),
		done: make(chan struct{}), ready: make(chan struct{}),
		v: view.View{Agent: view.Agent{ID: cfg.ID, Host: cfg.Host}}, live: map[view.Source]time.Time{}, granted: map[view.Source]turn{}, bundles: map[string]*bundle{}, leaving: map[*bundle]bool{},
	}
	a.loop.use(a.loop.v)
	a.loop.snapshot.Store(&snapshot{next: make(chan struct{})})
	a.left = newLeftovers(a)
	a.sup = &supervisor{a: a, units: map[string]*runningUnit{}}
	a.renders = renderlog.New(cfg.StateDir)
	a.saved = &lastGoodSaver{a: a, wake: make(chan struct{}, 1), kept: lastgood.NewKeeper(cfg.StateDir)}
	a.dns = a.dnsKeeper()
	a.web = web.New(web.Config{
		Source: shown{a}, ID: cfg.ID, Socket: cfg.Admin.Socket, Orders: a.orders(),
		Events: a.events, Conditions: a.conds, Metrics: a.metrics.reg, Logger: a.log,
	})
}

func (a *Agent) dnsKeeper() *dns.Keeper {
	k := dns.NewKeeper()
	k.Want, k.Logger, k.Metrics = func() *dns.Config { return a.cfg.Load().DNS }, a.log, a.metrics.of.dns
	k.State = func() dns.State {
		s := a.loop.snapshot.Load()
		return dns.State{Key: s, View: s.view, Declared: s.declared}
	}
	k.Failed = func(address string, err error) {
		a.conds.Retain(condition.DNSNotListening, func(s string) bool { return err != nil && s == address })
		if err != nil {
			a.conds.Open(condition.DNSNotListening, address, err.Error())
		}
	}
	return k
}

func (a *Agent) use(cfg *Config) {
	a.metrics.retain(a.cfg.Swap(cfg), cfg)
	elections := map[string]string{}
	for _, e := range cfg.Elections {
		elections[e.Name] = e.Path
	}
	a.hooks.Set(cfg.Hooks, elections)
	a.settings.state.Store(&show.SettingsStatus{Hash: cfg.Hash, Loaded: time.Now(), Files: cfg.Files})
	a.metrics.settings(true, cfg.Hash)
	a.web.Changed()
	a.dns.Changed()
}

// HTTPAddr is the address of the HTTP listener, or "" without one.
func (a *Agent) HTTPAddr() string { return a.web.Addr() }

// conditionChanged keeps metrics, events and the log in step with the open
// conditions.
func (a *Agent) conditionChanged(c condition.Condition, isOpen bool) {
	a.metrics.condition(c, isOpen)
	pace.Notify(a.wake.record)
	kind, text := "condition-closed", "after "+time.Since(c.Since).Round(time.Millisecond).String()
	if isOpen {
		kind, text = "condition-opened", c.Text
		a.log.Warn("condition open", "code", c.Code, "subject", c.Subject, "text", c.Text)
	} else {
		a.log.Info("condition closed", "code", c.Code, "subject", c.Subject, "lasted", time.Since(c.Since))
	}
	a.events.Add(event.Event{Kind: kind, Subject: c.Name(), Text: text, Warn: isOpen})
}

// Reload loads the settings again and puts them in use. Settings that are not
// valid keep the present ones running: the error has the cause.
func (a *Agent) Reload(ctx context.Context) error {
	if a.first.Load == nil {
		return errors.New("reload: there is nothing to load settings from")
	}
	// Settings that are loaded before the first ones are in use would be
	// replaced by them.
	select {
	case <-a.settings.up:
	case <-a.settings.down:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	a.settings.mu.Lock()
	defer a.settings.mu.Unlock()
	if a.settings.closed {
		return errStopping
	}
	_ = a.notify.Reloading()
	err := a.reload(ctx)
	_ = a.notify.Ready(a.Summary())
	a.conds.Set(condition.SettingsInvalid, "", err)
	if err != nil {
		old := *a.settings.state.Load()
		old.Error = err.Error()
		a.settings.state.Store(&old)
		a.metrics.settings(false, "")
		a.log.Error("cannot load the settings", "err", err)
		return fmt.Errorf("reload settings: %w", err)
	}
	a.events.Add(event.Event{Kind: "settings-loaded", Text: a.cfg.Load().Hash})
	a.log.Info("settings loaded", "hash", a.cfg.Load().Hash)
	return nil
}

// errStopping says that settings come too late.
var errStopping = errors.New("the agent is stopping")

func (a *Agent) reload(ctx context.Context) error {
	cfg, err := a.first.Load()
	if err != nil {
		return err
	}
	if cfg.ID != a.first.ID {
		return fmt.Errorf("the agent's id cannot change while it runs (%s to %s): restart it", a.first.ID, cfg.ID)
	}
	bundles, err := parseBundles(&cfg)
	if err != nil {
		return err
	}
	old := a.cfg.Load()
	a.use(&cfg)
	a.retainConditions(&cfg)
	units := a.unitSpecs(&cfg, bundles) // before the loop forgets what the settings no longer name
	if !a.loop.do(ctx, func() { a.loop.set(cfg.Sources(), bundles) }) {
		return errStopping
	}
	a.engine.Retain(cfg.Bundles)
	a.announceChecks(&cfg)
	a.sup.apply(ctx, units, func() {
		now := cfg.claims()
		if slices.ContainsFunc(old.claims(), func(claim string) bool { return !slices.Contains(now, claim) }) {
			a.left.add(old)
		}
	})
	a.retainConditions(&cfg) // A unit that has ended may have opened one meanwhile.
	return nil
}

// retainConditions closes the conditions of what the settings no longer name. Files,
// services and addresses belong to parts that do it themselves.
func (a *Agent) retainConditions(cfg *Config) {
	bundle := func(s string) bool { return hasBundle(cfg, s) }
	tree := func(s string) bool { return hasSource(cfg, "config "+s) }
	ofHook := func(s string) bool {
		return slices.ContainsFunc(cfg.Hooks, func(h hook.Config) bool { return h.Name == s })
	}
	for kind, keep := range map[*condition.Kind]func(string) bool{
		condition.TemplateFailed: bundle, condition.GroupEmpty: bundle, condition.KeyMissing: bundle, condition.RestoreFailed: bundle,
		condition.ReloadFailed: bundle, condition.ReloadPending: bundle, condition.ReloadHalted: bundle,
		condition.HookFailed: ofHook, condition.HookUnknown: ofHook,
		condition.MembersHeld: func(s string) bool {
			return hasSource(cfg, "group "+s) || strings.Contains(s, "/") && hasSource(cfg, "groups "+s)
		},
		condition.RolloutFailed: tree, condition.RolloutHalted: tree, condition.RolloutsNotFollowed: tree,
		condition.NameRefused: func(s string) bool { return hasSource(cfg, s) || bundle(strings.TrimPrefix(s, "template ")) },
	} {
		a.conds.Retain(kind, keep)
	}
}

// hasSource reports whether a config tree, a group or an election of the settings has
// the name that conditions have for it.
func hasSource(cfg *Config, subject string) bool {
	return slices.ContainsFunc(cfg.Sources(), func(s view.Source) bool {
		name := string(s.Kind) + " " + s.Name
		return subject == name || s.Kind == view.KindGroups && strings.HasPrefix(subject, name+"/")
	})
}

// closeSource closes the conditions of a source whose follower has ended: the next one knows
// only those that it opens itself.
func (a *Agent) closeSource(subject string) {
	for _, kind := range []*condition.Kind{condition.SourceUnusable, condition.SourceGone} {
		a.conds.Retain(kind, func(s string) bool { return s != subject && !strings.HasPrefix(s, subject+"/") })
	}
}

// fileWatch loads the settings again when one of their files, or a template,
// changes.
func (a *Agent) fileWatch(ctx context.Context) filewatch.Watch {
	return filewatch.Watch{
		Files: func() []string {
			cfg := a.cfg.Load()
			files := slices.Clone(cfg.Files)
			for _, b := range cfg.Bundles {
				for _, t := range b.Templates {
					if t.Source != "" {
						files = append(files, t.Source)
					}
				}
			}
			return files
		},
		Changed: func() {
			if err := a.Reload(ctx); err != nil {
				a.log.Debug("cannot load the changed settings", "err", err)
			}
		},
		Problem: func(dir string, err error) { a.conds.Set(condition.FilesNotWatched, dir, err) },
		Lost:    func(err error) { a.log.Warn("file events lost", "err", err) },
	}
}

func hasBundle(cfg *Config, name string) bool {
	return slices.ContainsFunc(cfg.Bundles, func(b apply.Config) bool { return b.Name == name })
}

// parseBundles parses the templates of the settings. The bundles are returned
// even when some of them cannot be parsed.
func parseBundles(cfg *Config) ([]*bundle, error) {
	var bundles []*bundle
	var errs []error
	for _, b := range cfg.Parse() {
		var report bundleReport
		if report.State = "waiting"; b.Err != nil {
			report.State, report.Stage, report.Err = "failed", "parse", b.Err
		}
		bundles = append(bundles, &bundle{shownBundle: shownBundle{b, report}, settle: apply.Settle{Min: b.Config.WaitMin, Max: b.Config.WaitMax}})
		errs = append(errs, b.Err)
	}
	return bundles, errors.Join(errs...)
}

// setLoop gives the first settings to the loop. A bundle that cannot be
// parsed is shown as failed, and the others work.
func (a *Agent) setLoop(ctx context.Context, cfg *Config) []*bundle {
	bundles, err := parseBundles(cfg)
	if err != nil {
		a.log.Error("cannot use the templates", "err", err)
	}
	a.loop.do(ctx, func() {
		a.loop.set(cfg.Sources(), bundles)
		a.loop.publish() // before the conditions that depend on it
	})
	for _, b := range bundles {
		if b.Err != nil {
			a.conds.Open(condition.TemplateFailed, b.Config.Name, b.Err.Error())
		}
	}
	return bundles
}

// announceChecks says which checks do not run before the swap.
func (a *Agent) announceChecks(cfg *Config) {
	for _, b := range cfg.Bundles {
		when := apply.CheckStatus(b.Check)
		if when == "" {
			continue
		}
		after := strings.HasPrefix(when, "after")
		a.metrics.previewed.WithLabelValues(b.Name).Set(bool01(!after))
		if after {
			a.log.Warn("a check does not run before the swap", "template", b.Name, "runs", when)
		}
	}
}

// plainRun runs a command that needs no lease.
func (a *Agent) plainRun(ctx context.Context, c proc.Command) (proc.Result, error) {
	return a.hooks.RunLeading(ctx, "", 0, c)
}

// leaderChanged makes leader-only reloads that are pending run.
func (a *Agent) leaderChanged(ctx context.Context) {
	a.loop.do(ctx, func() {
		for _, b := range a.loop.bundles {
			if r := b.Config.Reload; r != nil && r.Leader != "" && !a.engine.PendingSince(b.Config.Name).IsZero() {
				b.settle.Note(time.Now())
			}
		}
	})
}
