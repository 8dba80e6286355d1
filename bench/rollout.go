package bench

import "github.com/zkagent/zkagent/fleet"

// What a rollout is made of. The counts are those of FLEET's protocol, which
// fleet.TestRolloutTraffic guards; the bytes are rounded from what it measures.
const (
	callBytes    = 1300  // the call with the proposal and a small difference
	recordBytes  = 200   // one record of a host
	grantBatch   = 128   // records that one transaction grants
	deleteBatch  = 256   // records that one transaction deletes
	readBatch    = 512   // records that one multiRead reads
	gather       = 0.05  // seconds for which the coordinator gathers changes
	batchedRate  = 10e3  // znodes a second that the leader changes in transactions of many
	proposal     = 70    // requests of the proposer
	callsAtOnce  = 64    // shards
	perSnapshots = 2 * 3 // znodes of a proposal beside its shards
)

// rolling is a rollout under way in a simulation.
type rolling struct {
	w           *world
	parallel    int
	work, check float64

	voted, granted, active, done int
	fresh                        int  // records that the coordinator has not read
	awake                        bool // it gathers
	closed                       float64
}

// Rollout simulates the rollout of a version to all hosts: so many at once, each with
// seconds of work, after seconds of checks.
func (s Sim) Rollout(parallel int, work, check float64) Outcome {
	w := s.world()
	r := &rolling{w: w, parallel: max(1, parallel), work: work, check: check}
	var list []request
	for range proposal {
		list = append(list, w.read(recordBytes))
	}
	list = append(list, w.batch(perSnapshots+2*callsAtOnce))
	w.ask(0, 0, list, func(t float64) { w.tell(t, r.called) })
	o := w.run("a rollout", 0)
	o.Seconds = r.closed
	return o
}

// tell sends one event to each host.
func (w *world) tell(t float64, then func(at float64, server int)) {
	for server := range w.servers {
		at := t + w.Trip/2
		for host := server; host < w.Hosts; host += w.Servers {
			at += 1 / w.Events
			then(at+w.Trip/2, server)
		}
	}
}

// batch is a transaction that changes many znodes.
func (w *world) batch(znodes int) request {
	return request{cost: 1 / w.Rate, bytes: float64(znodes) * recordBytes, write: true, weight: float64(znodes) / batchedRate}
}

// called lets a host read its call, check the version, vote, and look at its record.
func (r *rolling) called(at float64, server int) {
	w := r.w
	w.ask(at, server, []request{w.read(callBytes)}, func(t float64) {
		delay := w.random.Float64() * fleet.VoteWindow(w.Hosts).Seconds()
		w.ask(t+r.check+delay, server, []request{w.record(), w.read(recordBytes)}, func(t float64) {
			r.voted++
			r.note(t)
		})
	})
}

// record is the write of a host's own record.
func (w *world) record() request {
	p := w.put()
	p.bytes = recordBytes
	return p
}

// note wakes the coordinator, because a record has changed.
func (r *rolling) note(t float64) {
	r.fresh++
	if !r.awake {
		r.awake = true
		r.w.at(t+gather, r.look)
	}
}

// look reads the changed records, and grants or closes.
func (r *rolling) look(t float64) {
	w := r.w
	r.awake = false
	var list []request
	for ; r.fresh > 0; r.fresh -= min(r.fresh, readBatch) {
		n := min(r.fresh, readBatch)
		list = append(list, request{cost: 1/w.Rate + float64(n)*recordBytes/w.Bandwidth, bytes: float64(n) * recordBytes})
	}
	switch {
	case r.closed > 0 || r.voted < w.Hosts:
		w.ask(t, 0, list, nil)
	case r.granted == 0:
		w.ask(t, 0, append(list, w.put()), r.grant) // the gate opens
	default:
		w.ask(t, 0, list, r.grant)
	}
}

// grant fills the free places.
func (r *rolling) grant(t float64) {
	w := r.w
	if r.done == w.Hosts && r.closed == 0 {
		r.closed = t
		w.ask(t, 0, []request{w.batch(3)}, r.end)
		return
	}
	free := min(r.parallel-r.active, w.Hosts-r.granted)
	for free > 0 {
		n := min(free, grantBatch)
		first := r.granted
		free, r.granted, r.active = free-n, r.granted+n, r.active+n
		w.ask(t, 0, []request{w.batch(n)}, func(t float64) {
			for host := first; host < first+n; host++ {
				r.turn(t+w.Trip, host%w.Servers)
			}
		})
	}
}

// turn lets a host take its turn.
func (r *rolling) turn(at float64, server int) {
	w := r.w
	w.ask(at, server, []request{w.read(recordBytes), w.record()}, func(t float64) {
		w.ask(t+r.work, server, []request{w.record()}, func(t float64) {
			r.active--
			r.done++
			r.note(t)
			w.report(t, server)
		})
	})
}

// end lets all hosts read ready, and deletes the records of a large fleet.
func (r *rolling) end(t float64) {
	w := r.w
	r.closed = t
	w.tell(t, func(at float64, server int) { w.ask(at, server, w.version(), nil) })
	var list []request
	for left := w.Hosts; left > 1000; left -= deleteBatch {
		list = append(list, w.batch(deleteBatch))
	}
	w.ask(t, 0, list, nil)
}
