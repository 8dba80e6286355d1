package fleet

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// ambush keeps transactions on their way to the server while something happens that
// their senders do not know of. What a transaction does not check, and should, then
// breaks an invariant.
type ambush struct {
	mu   sync.Mutex // guards what follows
	rng  *rand.Rand
	odds int // one transaction of so many is kept; 0: none
	busy bool
	kept map[string]int // transactions of one kind that were kept
}

// ghost is who acts in an ambush. It is never kept itself.
const ghost = "ghost:2181"

func (a *ambush) set(rng *rand.Rand, odds int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rng, a.odds, a.kept = rng, odds, map[string]int{}
}

// lie decides whether a transaction is kept; nil: it is not. Those of a rare kind are
// kept more often.
func (a *ambush) lie(kind string) *rand.Rand {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.odds == 0 || a.busy || a.rng.IntN(min(a.odds, 2+3*a.kept[kind])) > 0 {
		return nil
	}
	a.busy = true
	a.kept[kind]++
	return rand.New(rand.NewPCG(a.rng.Uint64(), 7))
}

// end waits for the last ambush, and there is no other.
func (a *ambush) end() {
	a.set(nil, 0)
	for a.waits() {
		time.Sleep(100 * time.Millisecond) // virtual
	}
}

func (a *ambush) waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.busy
}

func (a *ambush) over() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy = false
}

// hold is for memzk.Server.Hold.
func (w *sim) hold(h memzk.Held) <-chan struct{} {
	if h.Op != jute.OpMulti || h.Addr == ghost {
		return nil
	}
	rng := w.trap.lie(kind(h))
	if rng == nil {
		return nil
	}
	free := make(chan struct{})
	w.wg.Go(func() {
		defer w.trap.over()
		lost := w.spring(h, rng)
		close(free)
		if lost {
			nap(w.t.Context(), 3*time.Second)
			w.server.Heal(h.Addr)
		}
	})
	return free
}

var (
	recordOf = regexp.MustCompile(`/hosts/[0-9a-f]{2}/(h[0-9]+)`)
	ticketOf = regexp.MustCompile(`^[^{]*{"state":"wait"`)
	canaryOf = regexp.MustCompile(`"state":"done".*"canary":true`)
)

// marks are the words of a transaction that tell its kind, each with how many bytes
// after it count.
var marks = []struct {
	word  []byte
	after int
}{{[]byte(`"state":"`), 5}, {[]byte(`"lives":`), 1}, {[]byte("/versions/"), 2}, {[]byte("/objects/"), 0}, {[]byte("/shards/"), 0}, {[]byte("/ready"), 0}}

// kind is what a transaction is about: the first three marks in it. A regular
// expression takes a third of the whole simulation's time here.
func kind(h memzk.Held) string {
	var kind []byte
	body := h.Body
	for range 3 {
		first, end := len(body), len(body)
		for _, m := range marks {
			if i := bytes.Index(body[:first], m.word); i >= 0 {
				first, end = i, min(i+len(m.word)+m.after, len(body))
			}
		}
		kind = append(kind, body[first:end]...)
		body = body[end:]
	}
	return string(kind)
}

// spring lets one to three things happen, for less time than a session lives. Now and
// then the reply is lost, too, and its receiver goes to a server that is behind: the
// result is true.
func (w *sim) spring(h memzk.Held, rng *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Second)
	defer cancel()
	s, err := session.Dial(ctx, session.Config{Servers: []string{ghost}, Timeout: 6 * time.Second, Dial: w.server.Dial})
	if err != nil {
		return false
	}
	defer s.Close()
	for range 1 + rng.IntN(3) {
		step, done := context.WithTimeout(ctx, 2*time.Second)
		w.intrude(step, s, h, rng)
		done()
	}
	if rng.IntN(4) > 0 {
		return false
	}
	w.book.lag()
	w.server.Lag(other(h.Addr))
	w.server.RefuseDial(h.Addr)
	w.server.LoseReply(jute.OpMulti, 1, false)
	return true
}

// intrude is one thing that happens.
func (w *sim) intrude(ctx context.Context, s *session.Session, h memzk.Held, rng *rand.Rand) {
	switch about := rng.IntN(2) == 0; {
	case about && ticketOf.Match(h.Body):
		w.publish(ctx, s, rng, true) // the end of what it waits for
		return
	case about && canaryOf.Match(h.Body):
		w.dethrone(ctx, s)
		nap(ctx, time.Second)
		w.skew(time.Duration(rng.IntN(120)-120) * time.Second) // between what the next one reads
		return
	case about && bytes.Contains(h.Body, []byte(`"state":"granted"`)):
		w.dethrone(ctx, s)
		nap(ctx, 2*time.Second) // for what the next one grants
		return
	case about && collects(h.Body) && rng.IntN(2) == 0:
		w.foreign(ctx, s, rng)
		return
	case about && (collects(h.Body) || bytes.Contains(h.Body, []byte("/ready"))):
		w.propose(ctx, s, w.strategy(rng), "", false)
		return
	}
	switch rng.IntN(15) {
	case 0, 1:
		w.interfere(ctx, s, rng)
	case 2, 3, 13:
		w.turn(ctx, s, rng)
	case 4:
		w.publish(ctx, s, rng, true)
	case 5:
		w.publish(ctx, s, rng, false)
	case 6:
		w.foreign(ctx, s, rng)
	case 7:
		_, _ = GC(ctx, s, root, 1, nil)
	case 8:
		w.dethrone(ctx, s)
	case 9:
		w.named(h, rng).expire()
	case 10:
		w.named(h, rng).crash(true)
	case 11:
		w.book.lag()
		w.server.Lag(h.Addr)
	default:
		nap(ctx, time.Second)
	}
}

// collects reports whether a transaction deletes versions. It writes no record.
func collects(body []byte) bool {
	return bytes.Contains(body, []byte("/versions/")) && !bytes.Contains(body, []byte("{"))
}

// turn changes the gate of what is open, as an operator may.
func (w *sim) turn(ctx context.Context, s *session.Session, rng *rand.Rand) {
	name, err := Current(ctx, s, root)
	if errors.Is(err, ErrNoRollout) {
		w.propose(ctx, s, w.strategy(rng), "", false)
	}
	if err != nil {
		return
	}
	ann := Order{By: "ann"}
	switch phase := w.book.phase(name); {
	case phase == "" && w.book.gateOf(name).State == GateVoting && rng.IntN(4) > 0:
	case phase == PhaseHalted && rng.IntN(2) == 0:
		_ = Retry(ctx, s, root, name, ann)
	case phase == PhaseHalted:
		w.propose(ctx, s, w.strategy(rng), name, false)
	case phase == PhasePaused:
		_ = Resume(ctx, s, root, name, ann)
	case rng.IntN(3) == 0:
		_ = Pause(ctx, s, root, name, ann)
	default:
		_ = Abort(ctx, s, root, name, ann)
	}
}

// dethrone deletes the candidate that coordinates, whose session lives on.
func (w *sim) dethrone(ctx context.Context, s *session.Session) {
	name, err := Current(ctx, s, root)
	if err != nil {
		return
	}
	list, err := s.GetChildren(ctx, coordinatorPath(root, name))
	if err != nil {
		return
	}
	first, oldest := "", int64(0)
	for _, c := range list {
		if c.Err == nil && (first == "" || c.Stat.Czxid < oldest) {
			first, oldest = c.Name, c.Stat.Czxid
		}
	}
	if first != "" {
		_ = s.Delete(ctx, coordinatorPath(root, name)+"/"+first, -1)
	}
}

// named is a host whose record the transaction writes, or else any.
func (w *sim) named(h memzk.Held, rng *rand.Rand) *simHost {
	if ids := recordOf.FindAllSubmatch(h.Body, -1); len(ids) > 0 {
		id := string(ids[rng.IntN(len(ids))][1])
		for _, host := range w.hosts {
			if host.id == id {
				return host
			}
		}
	}
	return w.hosts[rng.IntN(len(w.hosts))]
}
