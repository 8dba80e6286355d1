package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// TestWorld runs a group for half an hour to hours: hosts with real registrars, two that
// follow the group, one of them later than the other, and a ZooKeeper that loses
// sessions. A follower restarts now and then while it holds. Programs from a seed strike: all sessions expire, the connections of all are
// cut, services crash, flap, restart, are deployed, go into maintenance or die for good.
// The invariants, looked at twice a second at each follower:
//
//   - Serves: a member that is registered and up serves within 15 s, unless it was absent
//     by its own fault twice in five minutes. (Until a burst of losses is one, the first
//     that are back may be damped.)
//   - Share: when 30 % and at least 3 of the members that are well do not serve, a hold
//     is shown; and damping alone never takes that many.
//   - Held: while a hold is shown, those that served when it began serve, but for those that
//     were not well lately, and one for each new member.
//   - Dead: with a probe, a member that has been dead for a minute does not serve; without
//     one, 11 minutes.
//   - Quiet: after 13 quiet minutes exactly those that are registered and up serve, and
//     nothing is held or flapping. So the followers agree.
//   - File: a rendered file lists exactly those that may serve.
func TestWorld(t *testing.T) {
	testhelp.Seeds(t, 4*time.Second, func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, srv *memzk.Server) { newWorld(t, srv, seed).play() })
	})
}

const (
	worldSettle = 3 * time.Second  // until a follower has read what is registered
	worldBound  = 15 * time.Second // until a member serves that has not flapped
	worldCalm   = 20 * time.Second // until a host that was well once counts as one that should serve
	worldQuiet  = 13 * time.Minute
)

// box is a host with one service.
type box struct {
	port    int
	health  health
	cfg     ServiceConfig
	reg     *Registrar
	moved   func() // stops those of the previous settings
	agent   *runner
	alive   bool      // the service answers
	leaving bool      // it was told to go, or is in maintenance
	dead    time.Time // when it died for good; zero: it has not
	well    time.Time // since when the service is well; zero: it is not
	up      time.Time // since when it is registered and up; zero: it is not
	once    bool      // it was registered since it is well
	absent  []time.Time
}

type follower struct {
	addr     string
	group    *Group
	agent    *runner
	rendered *view.Group // of the last file
	out      map[int]time.Time
	served   map[int]*view.Member // at the last look
	kept     map[int]*view.Member // that served when the hold began
}

type world struct {
	t         *testing.T
	srv       *memzk.Server
	rnd       *rand.Rand
	hosts     *hosts
	boxes     []*box
	next      int // port of the next new box
	followers []*follower
	probe     bool
	template  *template.Template
	masses    []time.Time // when many were lost at once
	log       []string
	failed    bool
}

func newWorld(t *testing.T, srv *memzk.Server, seed uint64) *world {
	w := &world{t: t, srv: srv, rnd: rand.New(rand.NewPCG(seed, 33)), hosts: &hosts{alive: map[string]bool{}, refuse: true}, next: 1}
	w.probe = seed%2 == 0
	var err error
	w.template, err = template.Parse(template.Config{Name: "servers", Source: `{{ range members "web" }}server {{ .Address }}
{{ else }}{{ end }}`})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) play() {
	most := 16
	if testhelp.All() {
		most = 60
	}
	size := 5 + int(float64(most-5)*math.Pow(w.rnd.Float64(), 3))
	defer func() {
		for _, b := range w.boxes {
			b.moved()
			b.agent.stop()
		}
		for _, f := range w.followers {
			f.agent.stop()
		}
	}()
	for range size {
		w.start()
	}
	w.follow()
	w.pass(time.Minute)
	strikes := []func(){w.expireAll, w.expireAll, w.cutAll, w.crash, w.crash, w.flap, w.restart, w.kill, w.rolling, w.blueGreen, w.maintain, w.maintain, w.move, w.die}
	for range 6 + w.rnd.IntN(8) {
		if len(w.followers) == 1 && w.rnd.IntN(4) == 0 {
			w.pass(time.Minute)
			w.follow()
		}
		strikes[w.rnd.IntN(len(strikes))]()
		w.pass(time.Duration(w.rnd.IntN(60)) * time.Second)
		if w.failed {
			w.t.Logf("%d boxes; %s", size, strings.Join(w.log, "; "))
			return
		}
	}
	w.note("quiet")
	w.pass(worldQuiet)
	w.atRest()
	if w.failed {
		w.t.Logf("%d boxes; %s", size, strings.Join(w.log, "; "))
	}
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, time.Now().Format(time.TimeOnly)+" "+fmt.Sprintf(format, args...))
}

// start begins a new host.
func (w *world) start() *box {
	b := &box{port: w.next}
	w.next++
	w.boxes = append(w.boxes, b)
	w.boot(b)
	return b
}

// boot starts the service of a host and its agent.
func (w *world) boot(b *box) {
	weight := 100
	b.alive, b.leaving, b.once = true, false, false
	b.health.bad.Store(false)
	w.setAlive(b)
	b.cfg = ServiceConfig{
		Name: "web", Groups: []string{groupPath}, Address: "10.0.0.5", Port: b.port, MemberID: fmt.Sprint("m", b.port), Run: b.health.run,
		Weight: &weight, WarmUp: 30 * time.Second, Checks: []CheckConfig{{Kind: CheckExec, Command: []string{"check"}}},
		OnCritical: []string{OnCriticalRemove, OnCriticalStatus}[b.port%2], Drain: time.Duration(b.port%3) * time.Second,
	}
	b.reg = NewRegistrar(b.cfg)
	b.agent = run(w.t, addrConfig(w.srv, b.addr()), b.reg)
	b.moved = func() {}
}

// move changes the format of a member, as a reload of the settings does.
func (w *world) move() {
	b := w.any()
	b.cfg.Format = []string{FormatNerve, FormatCurator}[w.rnd.IntN(2)]
	w.note("m%d moves to %s", b.port, b.cfg.Format)
	next := NewRegistrar(b.cfg)
	next.inherit(b.reg)
	ctx, cancel := context.WithCancel(w.t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = next.RunChecks(ctx) })
	all.Go(func() { _ = b.agent.Each(ctx, next.Run) })
	stop := b.moved
	b.moved = func() { stop(); cancel(); all.Wait() }
	timer := time.NewTimer(time.Minute) // virtual
	defer timer.Stop()
	select {
	case <-next.Joined():
	case <-timer.C:
	}
	w.drain(b)
	b.reg = next
}

func (w *world) drain(b *box) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	_ = b.reg.Drain(ctx)
}

func (b *box) addr() string { return fmt.Sprintf("m%d:2181", b.port) }

func (w *world) setAlive(b *box) {
	w.hosts.set(func() { w.hosts.alive[fmt.Sprint(b.port)] = b.alive })
}

func (w *world) follow() {
	f := &follower{out: map[int]time.Time{}, addr: fmt.Sprintf("f%d:2181", len(w.followers))}
	w.begin(f)
	w.followers = append(w.followers, f)
	w.note("follower %d starts", len(w.followers))
	w.pass(10 * time.Second)
}

// begin starts a process that follows.
func (w *world) begin(f *follower, before ...*view.Group) {
	c := webGroup()
	c.Guard.Probe, c.Before = w.probe, before
	f.group = NewGroup(c)
	f.group.prober.dial = w.hosts.dial
	f.agent = run(w.t, addrConfig(w.srv, f.addr), f.group)
}

// refollow restarts a follower during a hold, which continues.
func (w *world) refollow() {
	f := w.followers[w.rnd.IntN(len(w.followers))]
	if g := f.agent.group(); g != nil && !g.Holding.IsZero() {
		w.note("follower at %s restarts", f.addr)
		f.agent.stop()
		w.begin(f, g)
		w.pass(worldSettle)
	}
}

// any returns a host that runs.
func (w *world) any() *box {
	var list []*box
	for _, b := range w.boxes {
		if b.alive && !b.leaving {
			list = append(list, b)
		}
	}
	return list[w.rnd.IntN(len(list))]
}

// mass notes that many are lost at once, by no fault of theirs.
func (w *world) mass() { w.masses = append(w.masses, time.Now()) }

// expireAll ends the sessions of all hosts, once or twice within a minute: together, or
// one after the other, so that each is back before the next one goes.
func (w *world) expireAll() {
	gap := time.Duration(w.rnd.IntN(3)) * 500 * time.Millisecond
	for range 1 + w.rnd.IntN(2) {
		w.note("all sessions expire, %s apart", gap)
		w.mass()
		for _, b := range w.boxes {
			w.srv.ExpireSession(b.agent.Manager.Status().SessionID)
			w.pass(min(gap, 15*time.Second/time.Duration(len(w.boxes))))
		}
		w.mass()
		w.pass(time.Duration(w.rnd.IntN(20)) * time.Second)
	}
}

// cutAll cuts the hosts from ZooKeeper for longer than their sessions last, so that the
// followers see them vanish, and come back one by one or at once.
func (w *world) cutAll() { w.cutAllFor(time.Duration(13+w.rnd.IntN(30)) * time.Second) }

func (w *world) cutAllFor(d time.Duration) {
	w.mass()
	w.note("all are cut off for %s", d)
	for _, b := range w.boxes {
		w.srv.Partition(b.addr())
	}
	w.pass(d)
	w.refollow()
	w.mass()
	gap := time.Duration(w.rnd.IntN(2)) * 300 * time.Millisecond
	for _, b := range w.boxes {
		w.srv.Heal(b.addr())
		w.pass(gap)
	}
	w.mass()
}

func (w *world) crash() {
	b := w.any()
	w.note("m%d crashes", b.port)
	w.bad(b, time.Duration(8+w.rnd.IntN(20))*time.Second)
}

// bad lets the check of a host fail for a time.
func (w *world) bad(b *box, d time.Duration) {
	b.health.bad.Store(true)
	b.absent = append(b.absent, time.Now())
	w.pass(d)
	b.health.bad.Store(false)
}

func (w *world) flap() {
	b := w.any()
	w.note("m%d flaps", b.port)
	for range 3 + w.rnd.IntN(4) {
		w.bad(b, 8*time.Second)
		w.pass(8 * time.Second)
	}
}

// restart stops the agent and its service as systemd does.
func (w *world) restart() {
	b := w.any()
	w.note("m%d restarts", b.port)
	w.again(b, time.Duration(1+w.rnd.IntN(5))*time.Second)
}

func (w *world) again(b *box, pause time.Duration) {
	b.absent = append(b.absent, time.Now())
	w.leave(b)
	w.pass(pause)
	w.boot(b)
}

// leave drains a host, and stops it.
func (w *world) leave(b *box) {
	b.leaving = true
	w.drain(b)
	b.alive = false
	w.setAlive(b)
	b.moved()
	b.agent.stop()
}

// kill ends the agent and the service without a word. Both start again.
func (w *world) kill() {
	b := w.any()
	w.note("m%d is killed", b.port)
	w.drop(b)
	w.pass(time.Duration(5+w.rnd.IntN(20)) * time.Second)
	w.boot(b)
}

func (w *world) drop(b *box) {
	b.absent = append(b.absent, time.Now(), time.Now()) // its former session may go after its return
	b.alive = false
	w.setAlive(b)
	b.agent.HandOver()
	b.moved()
	b.agent.stop()
}

func (w *world) rolling() {
	w.note("rolling restart")
	for _, b := range slices.Clone(w.boxes) {
		if b.alive && !b.leaving {
			w.again(b, time.Second)
			w.pass(time.Duration(w.rnd.IntN(6)) * time.Second)
		}
	}
}

func (w *world) blueGreen() {
	clean := w.rnd.IntN(2) == 0
	w.note("blue/green, clean %v", clean)
	old := slices.Clone(w.boxes)
	for range old {
		w.start()
	}
	w.pass(30 * time.Second)
	for _, b := range old {
		switch {
		case !b.dead.IsZero():
		case clean && b.alive:
			w.leave(b)
			b.dead = time.Now()
		case b.alive:
			w.drop(b)
			b.dead = time.Now()
		}
	}
	w.boxes = slices.DeleteFunc(w.boxes, func(b *box) bool { return !b.dead.IsZero() && clean })
}

func (w *world) maintain() {
	b := w.any()
	w.note("m%d is in maintenance", b.port)
	b.leaving = true
	b.absent = append(b.absent, time.Now())
	_ = b.reg.SetMaintenance(Maintenance{On: true, Reason: "look", Drain: w.rnd.IntN(2) == 0})
	w.pass(time.Duration(5+w.rnd.IntN(60)) * time.Second)
	_ = b.reg.Maintenance(false, "", time.Time{})
	b.leaving = false
}

// die ends hosts for good, perhaps while all are cut off.
func (w *world) die() {
	if len(w.boxes) < 5 {
		return
	}
	b := w.any()
	w.note("m%d dies", b.port)
	w.drop(b)
	b.dead = time.Now()
	if w.rnd.IntN(2) == 0 {
		w.cutAllFor(90 * time.Second)
	}
}

// pass lets time go by, and looks at everything twice a second.
func (w *world) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && !w.failed; {
		time.Sleep(min(500*time.Millisecond, time.Until(end)))
		synctest.Wait()
		w.look()
	}
}

func (w *world) look() {
	now := time.Now()
	registered := map[int]bool{}
	for name, n := range nodes(w.srv) {
		if m, err := Decode(FormatAuto, name, n.Data); err == nil && m.MayServe() {
			registered[m.Port] = true
		}
	}
	for _, b := range w.boxes {
		b.up = since(now, b.up, registered[b.port])
		b.well = since(now, b.well, b.alive && !b.leaving && !b.health.bad.Load())
		b.once = b.once && !b.well.IsZero() || !b.well.IsZero() && !b.up.IsZero()
	}
	for i, f := range w.followers {
		w.judge(i, f)
	}
}

// since follows since when something is so.
func since(now, was time.Time, is bool) time.Time {
	if !is {
		return time.Time{}
	}
	if was.IsZero() {
		return now
	}
	return was
}

func (w *world) fault(format string, args ...any) {
	w.t.Errorf(time.Now().Format(time.TimeOnly)+" "+format, args...)
	w.failed = true
}

// judge looks at the invariants at one follower.
func (w *world) judge(i int, f *follower) {
	now, g := time.Now(), f.agent.group()
	if g == nil {
		return
	}
	serves := map[int]*view.Member{}
	for j, m := range g.Members {
		if m.MayServe() {
			serves[m.Port] = &g.Members[j]
		}
	}
	w.judgeHold(i, f, g, serves)
	missing, should, damped, ups := []int{}, 0, 0, 0
	for _, b := range w.boxes {
		out := since(now, f.out[b.port], !b.up.IsZero() && b.faults(now) <= 1 && serves[b.port] == nil)
		if f.out[b.port] = out; !out.IsZero() && now.Sub(out) >= worldBound {
			w.fault("follower %d: m%d is up since %s and does not serve: %v", i, b.port, b.up.Format(time.TimeOnly), f.group.Status().Out)
		}
		if b.once {
			should++
			if now.Sub(b.well) >= worldCalm && serves[b.port] == nil {
				missing = append(missing, b.port)
			}
		}
		if !b.up.IsZero() {
			ups++
			if now.Sub(b.up) >= worldSettle && serves[b.port] == nil {
				damped++
			}
		}
		patience := 11 * time.Minute
		if w.probe {
			patience = time.Minute
		}
		if !b.dead.IsZero() && now.Sub(b.dead) >= patience && serves[b.port] != nil {
			w.fault("follower %d: m%d is dead since %s and serves: %+v", i, b.port, b.dead.Format(time.TimeOnly), f.group.Status().Out)
		}
	}
	late := i > 0 && len(w.masses) > 0 // it may have begun within a loss
	if n := len(missing); g.Holding.IsZero() && !late && n >= DefaultMinMembers && float64(n) >= DefaultMaxLoss*float64(should) {
		w.fault("follower %d: %v of %d do not serve, and no hold is shown: %v", i, missing, should, f.group.Status().Out)
	}
	if damped > 0 && (float64(damped) >= DefaultMaxLoss*float64(ups) || ups-damped < DefaultMinMembers) {
		w.fault("follower %d: %d members of %d that are up do not serve: %v", i, damped, ups, f.group.Status().Out)
	}
	if f.rendered != g {
		f.rendered = g
		w.render(g, len(serves))
	}
}

// judgeHold looks at what serves while the guard holds.
func (w *world) judgeHold(i int, f *follower, g *view.Group, serves map[int]*view.Member) {
	was := f.served
	f.served = serves
	if g.Holding.IsZero() {
		f.kept = nil
		return
	}
	if f.kept == nil {
		f.kept = was
	}
	var gone []int
	for port := range f.kept {
		at := slices.IndexFunc(w.boxes, func(b *box) bool { return b.port == port })
		if at < 0 {
			continue
		}
		if b := w.boxes[at]; serves[port] == nil && !b.well.IsZero() && time.Since(b.well) >= worldCalm {
			gone = append(gone, port)
		}
	}
	for port := range serves {
		if f.kept[port] == nil && len(gone) > 0 {
			gone = gone[1:]
		}
	}
	if len(gone) > 0 {
		w.fault("follower %d: %v served when the hold began: %v", i, gone, f.group.Status().Out)
	}
}

// faults is how often the host was absent by its own fault in the last five minutes.
func (b *box) faults(now time.Time) int {
	n := 0
	for _, at := range b.absent {
		if now.Sub(at) < 5*time.Minute {
			n++
		}
	}
	return n
}

// render renders the list of servers.
func (w *world) render(g *view.Group, serving int) {
	v := view.View{}.With(g)
	file, err := w.template.Render(w.t.Context(), &v, nil)
	if n := bytes.Count(file, []byte("server ")); err != nil || n != serving {
		w.fault("the file lists %d servers, and %d may serve: %v", n, serving, err)
	}
}

// atRest checks that what serves is what is registered and well.
func (w *world) atRest() {
	var want []int
	for _, b := range w.boxes {
		if !b.well.IsZero() {
			want = append(want, b.port)
			if b.up.IsZero() {
				w.fault("m%d is well and not registered", b.port)
			}
		}
	}
	slices.SortFunc(want, cmp.Compare)
	for i, f := range w.followers {
		st := f.group.Status()
		var got []int
		for _, m := range st.Members {
			if m.MayServe() {
				got = append(got, m.Port)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || !st.Holding.IsZero() || len(st.Flapping) > 0 {
			w.fault("follower %d at rest: %v serve, want %v; %v", i, got, want, st.Out)
		}
	}
}
