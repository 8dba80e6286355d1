package bench

import (
	pq "container/heap"
	"math"
	"math/rand/v2"
)

// This file simulates a fleet by discrete events in virtual seconds. Hosts send one
// request after the other, servers answer one after the other, and all writes pass
// through a leader. Unlike the formulas of model.go, the simulation shows the load
// over time, the queues and the waits.

// Sim says what is simulated. Rates are of one server.
type Sim struct {
	Fleet

	Writes    float64 // that the leader commits, a second
	Bandwidth float64 // bytes a second that a server sends
	Watches   float64 // paths of a setWatches that a server takes, a second
	Events    float64 // events that a server sends, a second
	Trip      float64 // seconds to a server and back
	Outage    float64 // seconds until servers that were lost are back
	Timeout   float64 // of a session, seconds
	ReadSplay float64 // seconds over which hosts spread the reads of a new version
	Agents    bool    // hosts also write that they have it: a subscription and a status, later
	Stubborn  bool    // handshakes that time out do not lengthen the pauses
	Until     float64 // when the simulation stops; 0: when all is done
	Seed      uint64
}

// Outcome is what a simulated event did to the servers.
type Outcome struct {
	Event    string
	Requests int     // of all hosts
	Wrote    int     // of them, writes
	Bytes    float64 // of all requests and answers, as far as they carry data
	Seconds  float64 // until the last host was served, the outage left out
	Rate     float64 // most requests that one server got in a second
	Queue    int     // most requests that waited at one server
	Wait     float64 // longest time from a request to its answer, seconds
	Writes   float64 // most writes that the leader got in a second
	Late     int     // handshakes that took longer than a host waited for them
	Away     int     // hosts that are not back when the simulation stops
}

// request is one request of a host.
type request struct {
	cost   float64 // seconds of its server
	bytes  float64
	write  bool    // it passes the leader, too
	weight float64 // seconds of the leader; 0: those of one write
}

// station answers one request after the other.
type station struct {
	free     float64 // when it has answered what waits
	ends     []float64
	head     int       // ends[head:] are those of what waits
	arrivals []float64 // in order of time
	queue    int       // most that waited
}

// take notes a request that arrives at a time, no earlier than the one before it,
// and returns when it is answered.
func (s *station) take(at, cost float64) float64 {
	for s.head < len(s.ends) && s.ends[s.head] <= at {
		s.head++
	}
	s.free = max(s.free, at) + cost
	s.ends = append(s.ends, s.free)
	s.queue = max(s.queue, len(s.ends)-s.head)
	s.arrivals = append(s.arrivals, at)
	return s.free
}

// rate is the most requests in any second.
func (s *station) rate() float64 {
	most, from := 0, 0
	for i, at := range s.arrivals {
		for s.arrivals[from] <= at-1 {
			from++
		}
		most = max(most, i-from+1)
	}
	return float64(most)
}

// happening is something that is due.
type happening struct {
	at  float64
	seq int // of two at one time the one that was scheduled first
	do  func(at float64)
}

type agenda []happening

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(happening)) } //nolint:forcetypeassert // Only this file pushes.
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// world is a simulation under way.
type world struct {
	Sim

	random   *rand.Rand
	agenda   agenda
	seq      int
	servers  []station
	leader   station
	requests int
	wrote    int
	bytes    float64
	wait     float64 // longest
	end      float64 // when the last request was answered
	late     int
	away     int
}

func (s Sim) world() *world {
	return &world{Sim: s, random: rand.New(rand.NewPCG(s.Seed, 1)), servers: make([]station, s.Servers)} //nolint:gosec // It spreads load and is to be the same each time.
}

// at schedules something.
func (w *world) at(t float64, do func(at float64)) {
	w.seq++
	pq.Push(&w.agenda, happening{t, w.seq, do})
}

// run runs until nothing is due and returns the outcome; began is when the clock
// of Seconds starts.
func (w *world) run(event string, began float64) Outcome {
	for len(w.agenda) > 0 && (w.Until == 0 || w.agenda[0].at < w.Until) {
		h := pq.Pop(&w.agenda).(happening) //nolint:forcetypeassert // Only this file pushes.
		h.do(h.at)
	}
	o := Outcome{Event: event, Requests: w.requests, Wrote: w.wrote, Bytes: w.bytes, Seconds: w.end - began, Wait: w.wait, Writes: w.leader.rate(), Late: w.late, Away: w.away}
	for i := range w.servers {
		o.Rate, o.Queue = max(o.Rate, w.servers[i].rate()), max(o.Queue, w.servers[i].queue)
	}
	return o
}

// ask sends requests from a time on, one after the other, and calls then when the
// last is answered.
func (w *world) ask(at float64, server int, list []request, then func(at float64)) {
	if len(list) == 0 {
		if then != nil {
			then(at)
		}
		return
	}
	w.at(at+w.Trip/2, func(arrived float64) {
		w.requests++
		w.bytes += list[0].bytes
		answered := w.servers[server].take(arrived, list[0].cost)
		next := func(t float64) {
			t += w.Trip / 2
			w.wait, w.end = max(w.wait, t-at), max(w.end, t)
			w.ask(t, server, list[1:], then)
		}
		if !list[0].write {
			next(answered)
			return
		}
		w.wrote++
		w.at(answered+w.Trip/2, func(t float64) {
			committed := w.leader.take(t, max(1/w.Writes, list[0].weight))
			w.at(committed+w.Trip/2, next)
		})
	})
}

// read is a request that answers with bytes.
func (w *world) read(bytes float64) request {
	return request{cost: 1/w.Rate + bytes/w.Bandwidth, bytes: bytes}
}

// put is a request that writes.
func (w *world) put() request { return request{cost: 1 / w.Rate, write: true} }

// version is what a host asks for a new version: ready, with the difference.
func (w *world) version() []request {
	reads := make([]request, versionRequests)
	for i := range reads {
		reads[i] = w.read(versionBytes / versionRequests)
	}
	return reads
}

// window is the time over which agents spread what they report.
func (w *world) window() float64 { return max(1, float64(w.Hosts)/1000) }

// report lets an agent write its subscription and its status, each at a moment of
// the window.
func (w *world) report(at float64, server int) {
	if w.Agents {
		for range 2 {
			w.ask(at+w.random.Float64()*w.window(), server, []request{w.put()}, nil)
		}
	}
}

// Publish simulates one version of one tree that all hosts follow.
func (s Sim) Publish() Outcome {
	w := s.world()
	for server := range w.servers {
		t := w.Trip / 2
		for host := server; host < w.Hosts; host += w.Servers {
			// A server sends its events before it answers anything else.
			t += 1 / w.Events
			w.ask(t+w.Trip/2+w.random.Float64()*w.ReadSplay, server, w.version(), func(t float64) { w.report(t, server) })
		}
		w.servers[server].free = t
	}
	return w.run("a version is published", 0)
}

// How a host waits, in seconds, as package session does: for a server's answer to its
// first request, for longer when servers were silent, and between those.
const (
	handshake     = 3.0
	mostHandshake = 30.0
	mostPause     = 120.0
)

// patience is how long a host waits for an answer after so many silent servers in a
// row, and how long before it tries.
func (w *world) patience(silent int) (limit, pause float64) { //nolint:nonamedreturns // two times need names
	if silent < 2 || w.Stubborn {
		return handshake, w.pause(silent)
	}
	grown := math.Pow(2, float64(silent-1))
	pause = min(handshake*grown, mostPause)
	return min(handshake*grown, mostHandshake), pause/2 + w.random.Float64()*pause/2
}

// pause is how long a host waits after it has tried all servers for the round-th
// time, as package session does: from 50 ms to 3 s, a random half left out.
func (w *world) pause(round int) float64 {
	const first, most = 0.05, 3.0
	d := min(first*math.Pow(2, float64(min(round, 10))), most, max(w.Timeout/3, first))
	return d/2 + w.random.Float64()*d/2
}

// connect lets a host that lost its connection at 0 come back after the outage.
// hello is its first request; then is called when the answer comes in time.
// Otherwise the host tries again and the server's work is wasted: another write
// ends the session that it made.
func (w *world) connect(hello request, then func(at float64, server int)) {
	t := 0.0
	for round := 0; t < w.Outage; round++ {
		t += w.pause(round)
	}
	w.away++
	w.hello(t, 0, hello, then)
}

// hello is one attempt, after so many that were in vain.
func (w *world) hello(t float64, silent int, hello request, then func(at float64, server int)) {
	limit, pause := w.patience(silent)
	if silent == 0 {
		pause = 0
	}
	t += pause
	server := w.random.IntN(w.Servers)
	over := false // the host has given up
	w.ask(t, server, []request{hello}, func(answered float64) {
		if !over {
			over = true
			w.away--
			then(answered, server)
		} else if hello.write {
			w.ask(answered+w.Timeout, server, []request{w.put()}, nil)
		}
	})
	w.at(t+limit, func(at float64) {
		if !over {
			over = true
			w.late++
			w.hello(at, silent+1, hello, then)
		}
	})
}

// Reconnect simulates that all connections are lost and come back after the
// outage. The sessions live: each host sets its watches again.
func (s Sim) Reconnect(event string) Outcome {
	w := s.world()
	for host := range w.Hosts {
		watches := float64(w.Trees)
		if host < w.Followers {
			watches += float64(w.Members + 1)
		}
		arm := request{cost: 1/w.Rate + watches/w.Watches}
		w.connect(w.read(0), func(t float64, server int) { w.ask(t, server, []request{arm}, nil) })
	}
	return w.run(event, w.Outage)
}

// Expiry simulates that all sessions expired in the outage: each host opens a new
// one, looks at its trees, of which it has the contents, subscribes, and reports; members
// come back within the splay.
func (s Sim) Expiry() Outcome {
	w := s.world()
	f := w.followers()
	var list []request
	for range w.Trees {
		list = append(list, w.read(200), w.read(200), w.put()) // ready, the shard, the subscription
	}
	list = append(list, w.put()) // the status
	for host := range w.Hosts {
		// A session is created by a write.
		w.connect(w.put(), func(t float64, server int) {
			w.ask(t, server, list, func(t float64) {
				if host < w.Members {
					w.ask(t+w.random.Float64()*w.Splay.Seconds(), server, w.registration(), f.joined)
				}
			})
		})
	}
	return w.run("every session expired", w.Outage)
}

// Join simulates that all members of a group register within the splay.
func (s Sim) Join() Outcome {
	w := s.world()
	f := w.followers()
	for range w.Members {
		w.ask(w.random.Float64()*w.Splay.Seconds(), w.random.IntN(w.Servers), w.registration(), f.joined)
	}
	return w.run("all members join", 0)
}

// registration is what a member asks for: two reads and its znode.
func (w *world) registration() []request { return []request{w.read(0), w.read(memberBytes), w.put()} }

// crowd are the hosts that follow the group.
type crowd struct {
	w       *world
	members int
	seen    []int     // members that each has read
	busy    []bool    // it reads, or waits until it may
	next    []float64 // when it may read again
}

func (w *world) followers() *crowd {
	return &crowd{w: w, seen: make([]int, w.Followers), busy: make([]bool, w.Followers), next: make([]float64, w.Followers)}
}

// joined sends the event of one more member to all followers.
func (c *crowd) joined(at float64) {
	c.members++
	for i, busy := range c.busy {
		if !busy {
			c.look(i, max(at+c.w.Trip/2, c.next[i]))
		}
	}
}

// look lets a follower read the list and the new members, and look again after a
// pause when more have come meanwhile.
func (c *crowd) look(i int, at float64) {
	c.busy[i] = true
	w, server := c.w, i%c.w.Servers
	w.at(at, func(at float64) {
		n := c.members
		c.next[i] = at + listPause.Seconds()
		list := []request{w.read(float64(n) * nameBytes)}
		for left := n - c.seen[i]; left > 0; left -= 512 {
			batch := float64(min(left, 512))
			list = append(list, w.read(batch*memberBytes), request{cost: 1/w.Rate + batch/w.Watches})
		}
		w.ask(at, server, list, func(done float64) {
			c.seen[i], c.busy[i] = n, false
			if c.members > n {
				c.look(i, max(done, c.next[i]))
			}
		})
	})
}
