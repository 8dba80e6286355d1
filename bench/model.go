package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Fleet describes a fleet for the model of docs/scale.md.
type Fleet struct {
	Hosts     int
	Servers   int           // that serve reads: followers and observers
	Trees     int           // versioned trees that each host follows
	Followers int           // hosts that follow one group
	Members   int           // of that group
	Splay     time.Duration // over which registrations spread
	Rate      float64       // requests a second that one server answers
}

// What the model is made of. The requests are counted in tests, the bytes by
// zkbench.
const (
	versionRequests = 1   // ready, with the difference
	versionBytes    = 622 // of 10,000 keys, one of them changed
	sessionReads    = 2   // of a tree that is held: ready and the call of the shard
	joinReads       = 2   // the list and the member
	memberBytes     = 260 // one member read, with its frames
	nameBytes       = 25  // one name in a list
	connectBytes    = 110 // the handshake, both ways
	watchBytes      = 45  // one path in setWatches
	listPause       = 50 * time.Millisecond
)

// Cost is what one event costs all servers together.
type Cost struct {
	Event    string
	Requests float64
	Bytes    float64
	Watches  float64 // that are set anew
	Seconds  float64 // until the last host is served
}

// Watches is how many watches one host holds.
func (f Fleet) Watches() float64 {
	return float64(f.Trees) + float64(f.Followers)/float64(f.Hosts)*float64(f.Members+1)
}

// Costs computes what the events of a fleet's life cost.
func (f Fleet) Costs() []Cost {
	hosts, followers, members := float64(f.Hosts), float64(f.Followers), float64(f.Members)
	// Lists read while the members come: one for each pause, or for each join
	// if there are fewer.
	lists := min(members, max(f.Splay.Seconds()/listPause.Seconds(), 1))
	costs := []Cost{
		{Event: "one version published", Requests: hosts * versionRequests, Bytes: hosts * versionBytes, Watches: hosts},
		{Event: "one member joins", Requests: followers * joinReads, Bytes: followers * (memberBytes + members*nameBytes), Watches: 2 * followers},
		{
			Event: "all members join", Requests: members*3 + followers*(members+lists),
			Bytes: members*3*memberBytes + followers*(members*memberBytes+lists*members/2*nameBytes), Watches: followers * (members + lists),
		},
		{
			Event: "every connection lost, sessions live", Requests: hosts * 2,
			Bytes: hosts * (connectBytes + f.Watches()*watchBytes), Watches: hosts * f.Watches(),
		},
		{
			Event: "every session expired", Requests: hosts*(2+sessionReads*float64(f.Trees)) + members*3 + followers*(1+2*members/512),
			Bytes:   hosts*(connectBytes+float64(f.Trees)*sessionReads*200) + followers*members*(memberBytes+nameBytes+watchBytes),
			Watches: hosts * f.Watches(),
		},
	}
	for i := range costs {
		costs[i].Seconds = costs[i].Requests / (f.Rate * float64(f.Servers))
	}
	costs[2].Seconds = max(costs[2].Seconds, f.Splay.Seconds())
	return costs
}

// Fleets are those of docs/scale.md.
var Fleets = []Fleet{
	{Hosts: 1000, Servers: 1, Trees: 2, Followers: 100, Members: 900, Splay: 10 * time.Second, Rate: 12000},
	{Hosts: 10000, Servers: 5, Trees: 2, Followers: 100, Members: 9900, Splay: time.Minute, Rate: 12000},
	{Hosts: 100000, Servers: 20, Trees: 2, Followers: 200, Members: 10000, Splay: 5 * time.Minute, Rate: 12000},
}

// Sims are the same fleets as they are simulated. The rates are those of a server
// of its own on two cores, rounded down; take those of yours.
func Sims() []Sim {
	var sims []Sim
	for _, f := range Fleets {
		sims = append(sims, Sim{
			Fleet: f, Writes: 5000, Bandwidth: 100e6, Watches: 300e3, Events: 50e3, Trip: 0.001, Timeout: 30, Agents: true, Seed: 1,
		})
	}
	return sims
}

// How long servers are away.
const (
	leaderOutage  = 3.0  // seconds of an election
	restartOutage = 10.0 // of a restart of all servers
	expiryOutage  = 40.0 // longer than the session timeout
)

// Life simulates the events of a fleet's life.
func (s Sim) Life() []Outcome {
	leader, restart, expiry := s, s, s
	leader.Outage, restart.Outage, expiry.Outage = leaderOutage, restartOutage, expiryOutage
	return []Outcome{s.Publish(), s.Join(), leader.Reconnect("the leader changes"), restart.Reconnect("ZooKeeper restarts"), expiry.Expiry()}
}

// SplayFor returns the splay in seconds for the reads of a version, so that no
// server, including the leader, gets more than a share of its capacity. It also
// returns the outcome with that splay.
func (s Sim) SplayFor(share float64) (float64, Outcome) {
	fits := func(o Outcome) bool { return o.Rate <= share*s.Rate && o.Writes <= share*s.Writes }
	o := s.Publish()
	if fits(o) {
		return 0, o
	}
	// An even spread needs this much; a random one needs a little more.
	s.ReadSplay = max(float64(o.Requests)/float64(s.Servers)/(share*s.Rate), 2*float64(s.Hosts)/(share*s.Writes)-s.world().window())
	for {
		if o = s.Publish(); fits(o) {
			return s.ReadSplay, o
		}
		s.ReadSplay *= 1.05
	}
}

// Model writes what the model and the simulation say of the fleets.
func Model(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "hosts\tservers\tcomputed\trequests\tMB\twatches\tseconds")
	for _, f := range Fleets {
		for _, c := range f.Costs() {
			_, _ = fmt.Fprintf(t, "%d\t%d\t%s\t%.0f\t%.1f\t%.0f\t%.1f\n", f.Hosts, f.Servers, c.Event, c.Requests, c.Bytes/1e6, c.Watches, c.Seconds)
		}
	}
	_, _ = fmt.Fprintln(t, "\nhosts\tservers\tsimulated\trequests\tseconds\tmost a second at a server\tmost waiting\tlongest wait\tmost writes a second\thandshakes too late")
	line := func(s Sim, name string, o Outcome) {
		_, _ = fmt.Fprintf(t, "%d\t%d\t%s\t%d\t%.1f\t%.0f\t%d\t%.2f s\t%.0f\t%d\n",
			s.Hosts, s.Servers, name, o.Requests, o.Seconds, o.Rate, o.Queue, o.Wait, o.Writes, o.Late)
	}
	for _, s := range Sims() {
		for _, o := range s.Life() {
			line(s, o.Event, o)
		}
		for _, share := range []float64{0.5, 0.25} {
			splay, o := s.SplayFor(share)
			line(s, fmt.Sprintf("a version, splay %.1f s: at most %.0f %% of any server", splay, 100*share), o)
		}
	}
	_, _ = fmt.Fprintln(t, "\nhosts\tservers\tsimulated\treads\twrites\tMB\tseconds\tlongest wait\tmost writes a second")
	for _, s := range rollouts() {
		publish, rollout := s.Publish(), s.Rollout(s.Hosts/10, rolloutWork, rolloutCheck)
		for _, o := range []Outcome{publish, rollout} {
			_, _ = fmt.Fprintf(t, "%d\t%d\t%s\t%d\t%d\t%.1f\t%.2f\t%.2f s\t%.0f\n",
				s.Hosts, s.Servers, o.Event, o.Requests-o.Wrote, o.Wrote, o.Bytes/1e6, o.Seconds, o.Wait, o.Writes)
		}
	}
	return t.Flush()
}

// How long a host works in its turn, and how long it checks a version, in seconds.
const (
	rolloutWork  = 5.0
	rolloutCheck = 5.0
)

// rollouts are the fleets whose rollouts are simulated: a tenth of the hosts at once,
// one tree.
func rollouts() []Sim {
	sims := Sims()
	small := sims[0]
	small.Fleet = Fleet{Hosts: 200, Servers: 1, Trees: 1, Rate: small.Rate}
	list := []Sim{small, sims[1], sims[2]}
	for i := range list {
		list[i].Trees = 1
	}
	return list
}
