package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// TestRule_Seeds runs random programs over the rule alone: members crash, flap one after
// the other, vanish together, drain, come back and are renamed, operators and probes
// believe a loss, and the follower is away for long or restarts during a hold. Half of the
// programs have a guard of their own. Invariants, after each step:
//
//   - Step: the members that stop to serve without saying so are fewer than the guard
//     would hold, unless a hold ends.
//   - Window: so are those that stop to serve within a window, but for one for each that
//     has come in it.
//   - Held: while the guard holds, at least as many serve as when it began, but for those
//     that say that they do not serve, and one for each that has come since.
//   - Up: damping takes fewer than the guard would hold of those that are up.
//   - Quiet: after 13 quiet minutes exactly those serve that are up.
func TestRule_Seeds(t *testing.T) {
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		newRuleProgram(t, seed).play()
	})
}

// lookback is which members served until a time, and which of them have said since that
// they do not, or have been gone for longer than a hold lasts.
type lookback struct {
	until  time.Time
	serves map[int]bool
	said   map[int]bool
}

type ruleProgram struct {
	t       *testing.T
	rnd     *rand.Rand
	r       *rule
	now     time.Time
	status  []string // of each member; empty: it is not registered
	czxid   int64
	zxids   []int64
	born    []time.Time // of those that came as new members
	gone    []time.Time // since when it is not registered; zero: it is
	shown   members
	serves  map[int]bool // after the last step
	before  map[int]bool // when the hold began
	window  []lookback   // what served within the window, oldest first
	log     []string
	trusted bool // a loss was believed since the last step
	stopped bool
}

func newRuleProgram(t *testing.T, seed uint64) *ruleProgram {
	rnd := rand.New(rand.NewPCG(seed, 7))
	n := 3 + rnd.IntN(10)
	p := &ruleProgram{t: t, rnd: rnd, r: usual(), now: epoch, status: make([]string, n), zxids: make([]int64, n), born: make([]time.Time, n), gone: make([]time.Time, n)}
	for i := range p.status {
		p.status[i] = view.StatusUp
	}
	if seed%2 == 0 {
		p.r.cfg = GuardConfig{
			MaxLoss: []float64{0.1, 0.3, 0.5, 0.9, 1}[rnd.IntN(5)], MinMembers: 1 + rnd.IntN(5),
			Window: time.Duration(1+rnd.IntN(60)) * time.Second, Hold: []time.Duration{0, 20 * time.Second, -1}[rnd.IntN(3)],
		}.withDefaults()
	}
	return p
}

func (p *ruleProgram) play() {
	p.step(0)
	p.step(time.Minute)
	for range 60 {
		i := p.rnd.IntN(len(p.status))
		switch p.rnd.IntN(14) {
		case 0, 1: // one flaps
			for range 1 + p.rnd.IntN(4) {
				p.set(time.Second, "", i)
				p.set(time.Duration(p.rnd.IntN(20))*time.Second, view.StatusUp, i)
			}
		case 2: // two flap in turns, too slowly for a burst
			for range 1 + p.rnd.IntN(3) {
				p.set(16*time.Second, "", i)
				p.set(time.Second, view.StatusUp, i)
				p.set(16*time.Second, "", 0)
				p.set(time.Second, view.StatusUp, 0)
			}
		case 3: // all vanish
			p.all("", time.Duration(p.rnd.IntN(2))*300*time.Millisecond)
			p.step(time.Duration(p.rnd.IntN(60)) * time.Second)
			p.all(view.StatusUp, time.Duration(p.rnd.IntN(2))*time.Second)
		case 4: // one drains and restarts
			p.set(time.Second, view.StatusDraining, i)
			p.set(time.Second, "", i)
			p.set(2*time.Second, view.StatusUp, i)
		case 5:
			p.set(time.Second, []string{view.StatusMaintenance, view.StatusDown}[p.rnd.IntN(2)], i)
		case 6:
			p.step(time.Duration(p.rnd.IntN(90)) * time.Second)
		case 7:
			p.set(time.Second, view.StatusUp, i)
		case 8:
			p.rename(1 + p.rnd.IntN(len(p.status)))
		case 9: // znodes are made anew between two reads
			for j, status := range p.status {
				if status != "" && p.rnd.IntN(3) > 0 {
					p.czxid++
					p.zxids[j] = p.czxid
				}
			}
			p.step(time.Second)
		case 10:
			p.believe()
		case 11:
			p.restart()
		case 12: // all vanish again and again, and not all come back
			for range 1 + p.rnd.IntN(5) {
				p.all("", 0)
				p.from(p.rnd.IntN(4), view.StatusUp, 0)
			}
		case 13: // the follower is away for minutes, and meanwhile all have vanished
			for i := range p.status {
				p.register(i, "")
			}
			p.step(max(p.r.cfg.Hold, 0) - time.Second*time.Duration(p.rnd.IntN(3)-1))
			p.from(p.rnd.IntN(4), view.StatusUp, 0)
		}
	}
	for range 6 * 13 {
		p.step(10 * time.Second)
	}
	for i, status := range p.status {
		if !p.stopped && p.r.cfg.Hold > 0 && p.serves[i] != (status == view.StatusUp) {
			p.fault("member %d is %q, serves is %v", i, status, p.serves[i])
		}
	}
	if p.stopped {
		p.t.Logf("%+v\n%s", p.r.cfg, strings.Join(p.log, "\n"))
	}
}

// rename lets new members come in the place of the first n, before these go or after it.
func (p *ruleProgram) rename(n int) {
	if len(p.status) > 20 {
		return
	}
	gap := time.Duration(p.rnd.IntN(2)) * time.Second
	status := view.StatusUp
	if p.rnd.IntN(3) == 0 {
		status = []string{view.StatusDown, view.StatusDraining}[p.rnd.IntN(2)]
	}
	come := func() {
		for range n {
			p.status, p.zxids = append(p.status, ""), append(p.zxids, 0)
			p.born, p.gone = append(p.born, p.now.Add(gap)), append(p.gone, time.Time{})
			p.set(gap, status, len(p.status)-1)
		}
	}
	first := p.rnd.IntN(3) > 0
	if first {
		come()
		p.step(time.Duration(p.rnd.IntN(40)) * time.Second)
	}
	clean := p.rnd.IntN(2) == 0
	for i := range n {
		if clean {
			p.set(gap, view.StatusDraining, i)
		}
		p.set(gap, "", i)
	}
	if !first {
		come()
	}
}

// restart lets another follower continue a hold.
func (p *ruleProgram) restart() {
	if p.r.since.IsZero() {
		return
	}
	before := &view.Group{Members: p.shown.values(nil, nil), Holding: p.r.since, Out: p.r.out()}
	cfg := p.r.cfg
	p.r = usual()
	p.r.cfg = cfg
	p.r.resume(later, before)
	p.log = append(p.log, "restart")
}

// believe lets an operator or a probe believe a loss that is held.
func (p *ruleProgram) believe() {
	lost := p.r.lost(p.r.base, p.r.now)
	switch {
	case p.r.since.IsZero():
	case p.rnd.IntN(2) == 0:
		p.r.accept()
		p.trusted = true
	default:
		p.r.confirm(lost[:p.rnd.IntN(len(lost)+1)])
		p.trusted = true
	}
	p.step(time.Second)
}

// all gives every member a status, one after the other.
func (p *ruleProgram) all(status string, gap time.Duration) { p.from(0, status, gap) }

// from is all without the first n.
func (p *ruleProgram) from(n int, status string, gap time.Duration) {
	for i := min(n, len(p.status)); i < len(p.status); i++ {
		if gap > 0 {
			p.set(gap, status, i)
			continue
		}
		p.register(i, status)
	}
	p.step(time.Second)
}

func (p *ruleProgram) register(i int, status string) {
	if p.status[i] == "" && status != "" {
		if p.now.Sub(p.gone[i]) > newFor {
			p.born[i] = p.now
		}
		p.czxid++
		p.zxids[i] = p.czxid
	}
	p.status[i] = status
}

func (p *ruleProgram) set(after time.Duration, status string, i int) {
	p.register(i, status)
	p.step(after)
}

func (p *ruleProgram) step(after time.Duration) {
	if p.stopped {
		return
	}
	p.now = p.now.Add(after)
	var set members
	for i, status := range p.status {
		p.gone[i] = since(p.now, p.gone[i], status == "")
		if status != "" {
			m := setOf(i)[0]
			m.Status, m.Czxid = status, p.zxids[i]
			set = append(set, m)
		}
	}
	held := !p.r.since.IsZero()
	shown, _ := p.r.step(p.now, set)
	p.shown = shown
	serves := map[int]bool{}
	for _, port := range serving(shown) {
		serves[port] = true
	}
	p.log = append(p.log, fmt.Sprintf("%s registered %v, serving %v, holding %v", p.now.Format("04:05.0"), p.status, serving(shown), !p.r.since.IsZero()))
	if p.trusted {
		p.before, p.trusted, p.window = nil, false, nil
	} else {
		p.judge(held, serves)
		p.judgeWindow(serves)
	}
	p.serves = serves
	p.window = append(p.window, lookback{serves: serves, said: map[int]bool{}})
}

// late reports whether a member has been gone for longer than a hold lasts.
func (p *ruleProgram) late(i int) bool {
	return p.r.cfg.Hold > 0 && p.status[i] == "" && p.now.Sub(p.gone[i]) >= p.r.cfg.Hold
}

// judgeWindow looks at what was in use within the window.
func (p *ruleProgram) judgeWindow(serves map[int]bool) {
	if n := len(p.window); n > 0 {
		p.window[n-1].until = p.now
	}
	p.window = slices.DeleteFunc(p.window, func(l lookback) bool { return p.now.Sub(l.until) > p.r.cfg.Window })
	worst, most := "", 0
	for _, l := range p.window {
		lost, size, came := []int{}, 0, 0
		for i := range l.serves {
			l.said[i] = l.said[i] || p.status[i] != "" && p.status[i] != view.StatusUp || p.late(i)
			switch {
			case l.said[i]:
				continue
			case !serves[i]:
				lost = append(lost, i)
			}
			size++
		}
		for i, born := range p.born {
			isNew := p.now.Sub(born) <= newFor+p.r.cfg.Window
			if serves[i] && (isNew || !l.serves[i] || l.said[i]) || isNew && slices.Contains(lost, i) { // The last one has paid before.
				came++
			}
		}
		if size > most {
			most, worst = size, ""
		}
		if k := len(lost) - came; size == most && k >= p.r.cfg.MinMembers && float64(k) >= p.r.cfg.MaxLoss*float64(size) {
			worst = fmt.Sprintf("%v of %d that served %s ago do not serve, %d have come", lost, size, p.now.Sub(l.until), came)
		}
	}
	if worst != "" {
		p.fault("%s", worst)
	}
}

func (p *ruleProgram) judge(held bool, serves map[int]bool) {
	holds := !p.r.since.IsZero()
	if holds && !held {
		p.before = maps.Clone(p.serves)
	}
	maps.DeleteFunc(p.before, func(i int, _ bool) bool { return p.status[i] != "" && p.status[i] != view.StatusUp })
	lost := func(was map[int]bool, replaced bool) int {
		n := 0
		for i := range was {
			rec := p.r.records[keyOf(setOf(i)[0])]
			if said := rec != nil && (rec.announced || rec.believed && !replaced); !serves[i] && !said && !p.late(i) && (p.status[i] == "" || p.status[i] == view.StatusUp) {
				n++
			}
		}
		return n
	}
	size := max(len(p.serves), p.r.size(p.r.base))
	if n := lost(p.serves, false); (holds || !held) && n >= p.r.cfg.MinMembers && float64(n) >= p.r.cfg.MaxLoss*float64(size) {
		p.fault("%d of %d stop to serve in one step", n, size)
	}
	came := 0
	for i := range serves {
		if !p.before[i] {
			came++
		}
	}
	if n := lost(p.before, true); holds && n > came {
		p.fault("%d that served when the hold began do not serve, %d have come", n, came)
	}
	up, out := 0, 0
	for i, status := range p.status {
		if status == view.StatusUp {
			if up++; !serves[i] {
				out++
			}
		}
	}
	if out > 0 && (float64(out) >= p.r.cfg.MaxLoss*float64(up) || up-out < p.r.cfg.MinMembers) {
		p.fault("%d of %d that are up do not serve", out, up)
	}
}

func (p *ruleProgram) fault(format string, args ...any) {
	p.t.Errorf(format, args...)
	p.stopped = true
}
