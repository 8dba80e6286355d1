package registry

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/view"
)

// TestRule_Seeds runs random programs over the rule alone: members crash, flap one after
// the other, vanish together, drain and come back. Invariants, after each step:
//
//   - Step: the members that stop to serve without saying so are fewer than the guard
//     would hold, unless a hold ends.
//   - Held: while the guard holds, at least as many serve as when it began, but for those
//     that say that they do not serve, or that were replaced.
//   - Up: damping takes fewer than the guard would hold of those that are up.
func TestRule_Seeds(t *testing.T) {
	testhelp.Seeds(t, 2*time.Second, func(t *testing.T, seed uint64) {
		newRuleProgram(t, seed).play()
	})
}

type ruleProgram struct {
	t       *testing.T
	rnd     *rand.Rand
	r       *rule
	now     time.Time
	status  []string // of each member; empty: it is not registered
	czxid   int64
	zxids   []int64
	serves  map[int]bool // after the last step
	before  map[int]bool // when the hold began
	log     []string
	stopped bool
}

func newRuleProgram(t *testing.T, seed uint64) *ruleProgram {
	rnd := rand.New(rand.NewPCG(seed, 7))
	n := 3 + rnd.IntN(10)
	p := &ruleProgram{t: t, rnd: rnd, r: usual(), now: epoch, status: make([]string, n), zxids: make([]int64, n)}
	for i := range p.status {
		p.status[i] = view.StatusUp
	}
	return p
}

func (p *ruleProgram) play() {
	p.step(0)
	p.step(time.Minute)
	for range 60 {
		i := p.rnd.IntN(len(p.status))
		switch p.rnd.IntN(8) {
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
		}
		if p.stopped {
			p.t.Log(strings.Join(p.log, "\n"))
			return
		}
	}
}

// all gives every member a status, one after the other.
func (p *ruleProgram) all(status string, gap time.Duration) {
	for i := range p.status {
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
		if status != "" {
			m := setOf(i)[0]
			m.Status, m.Czxid = status, p.zxids[i]
			set = append(set, m)
		}
	}
	held := !p.r.since.IsZero()
	shown, _ := p.r.step(p.now, set)
	serves := map[int]bool{}
	for _, port := range serving(shown) {
		serves[port] = true
	}
	p.log = append(p.log, fmt.Sprintf("%s registered %v, serving %v, holding %v", p.now.Format("04:05.0"), p.status, serving(shown), !p.r.since.IsZero()))
	p.judge(held, serves)
	p.serves = serves
}

func (p *ruleProgram) judge(held bool, serves map[int]bool) {
	holds := !p.r.since.IsZero()
	if holds && !held {
		p.before = p.serves
	}
	lost := func(was map[int]bool) int {
		n := 0
		for i := range was {
			if !serves[i] && (p.status[i] == "" || p.status[i] == view.StatusUp) && !p.announced(i) {
				n++
			}
		}
		return n
	}
	if n := lost(p.serves); (holds || !held) && n >= DefaultMinMembers && float64(n) >= DefaultMaxLoss*float64(len(p.serves)) {
		p.fault("%d of %d stop to serve in one step", n, len(p.serves))
	}
	if n := lost(p.before); holds && n > 0 {
		p.fault("%d that served when the hold began do not serve: %v", n, p.r.out())
	}
	up, out := 0, 0
	for i, status := range p.status {
		if status == view.StatusUp {
			if up++; !serves[i] {
				out++
			}
		}
	}
	if out > 0 && (float64(out) >= DefaultMaxLoss*float64(up) || up-out < DefaultMinMembers) {
		p.fault("%d of %d that are up do not serve", out, up)
	}
}

// announced reports whether the member said that it goes.
func (p *ruleProgram) announced(i int) bool {
	rec := p.r.records[keyOf(setOf(i)[0])]
	return rec != nil && rec.announced
}

func (p *ruleProgram) fault(format string, args ...any) {
	p.t.Errorf(format, args...)
	p.stopped = true
}
