package bench

import (
	"testing"
	"time"
)

func smallSim(hosts, servers int) Sim {
	return Sim{
		Fleet:  Fleet{Hosts: hosts, Servers: servers, Trees: 1, Followers: 5, Members: hosts / 2, Splay: 10 * time.Second, Rate: 10000},
		Writes: 2000, Bandwidth: 100e6, Watches: 300e3, Events: 50e3, Trip: 0.001, Timeout: 30, Seed: 7,
	}
}

// A published version costs what the model says, and takes as long as the servers
// need for it: the time of the requests, and little more.
func TestSim_PublishAgreesWithModel(t *testing.T) {
	for _, hosts := range []int{500, 2000} {
		s := smallSim(hosts, 1)
		o, model := s.Publish(), s.Costs()[0]
		if float64(o.Requests) != model.Requests {
			t.Errorf("%d hosts: %d requests, the model says %v", hosts, o.Requests, model.Requests)
		}
		if o.Seconds < model.Seconds || o.Seconds > 2*model.Seconds+0.1 {
			t.Errorf("%d hosts: %.2f seconds, the model says %.2f for the requests alone", hosts, o.Seconds, model.Seconds)
		}
		if again := s.Publish(); again != o {
			t.Errorf("the same simulation differs: %+v and %+v", o, again)
		}
	}
}

// Agents that say what they have make the leader the bottleneck; a splay bounds
// what each server gets.
func TestSim_SplayKeepsServersUnderLoad(t *testing.T) {
	s := smallSim(2000, 5)
	s.Agents, s.Writes = true, 400
	at := s.Publish()
	if at.Seconds < 4000/s.Writes || at.Requests != 3*2000 {
		t.Errorf("got %+v, want 4,000 writes at %v a second to take their time", at, s.Writes)
	}
	splay, o := s.SplayFor(0.5)
	if o.Rate > s.Rate/2 || o.Writes > s.Writes/2 {
		t.Errorf("with a splay of %.1f s: %+v, want half of what a server can answer", splay, o)
	}
	if splay < 17 || splay > 30 {
		t.Errorf("a splay of %.1f s, want a little over the 20 s of 4,000 writes at 200 a second, less the 2 s of the reports", splay)
	}
	if o.Wait > at.Wait/5 || o.Queue > at.Queue/5 {
		t.Errorf("%+v waits hardly less than %+v", o, at)
	}
	if idle, _ := smallSim(10, 1).SplayFor(0.5); idle != 0 {
		t.Errorf("ten hosts need a splay of %.1f s", idle)
	}
}

func TestSim_Reconnect(t *testing.T) {
	s := smallSim(2000, 2)
	s.Outage = 10
	o := s.Reconnect("restart")
	if o.Requests != 2*2000 || o.Late != 0 {
		t.Errorf("got %+v, want a handshake and one setWatches a host", o)
	}
	// After ten seconds all wait up to three between two attempts.
	if o.Seconds < 1 || o.Seconds > 4 {
		t.Errorf("all were back after %.1f s, want it within a pause", o.Seconds)
	}
}

// More new sessions than the leader can create while hosts wait for them are told.
func TestSim_ExpiryOverload(t *testing.T) {
	s := smallSim(2000, 2)
	s.Outage = 40
	if o := s.Expiry(); o.Late != 0 || o.Requests < 2000*6 {
		t.Errorf("2,000 hosts: %+v, want all in time", o)
	}
	s.Writes, s.Members = 200, 0
	if o := s.Expiry(); o.Late == 0 {
		t.Errorf("2,000 hosts at 200 sessions a second: %+v, want some that wait too long", o)
	}
}

// A fleet of which the leader can make the sessions in ten times the time that a host
// waits at first comes back, because the hosts wait longer and longer. One whose hosts
// do not never does: they come faster than sessions can be made for them.
func TestSim_ExpiryRecovers(t *testing.T) {
	s := smallSim(600, 4)
	s.Outage, s.Writes, s.Members, s.Followers, s.Until = 40, 20, 0, 0, 640
	patient := s.Expiry()
	if patient.Late == 0 || patient.Late > 8*s.Hosts || patient.Away > 0 {
		t.Errorf("%+v: want all back after 600 s, and few attempts of a host", patient)
	}
	s.Stubborn = true
	if stubborn := s.Expiry(); stubborn.Away < s.Hosts/2 {
		t.Errorf("stubborn hosts: %+v, want most away", stubborn)
	}
}

// In a large fleet the votes do not meet at the leader.
func TestSim_RolloutVotes(t *testing.T) {
	s := smallSim(10_000, 5)
	s.Writes = 5000
	if o := s.Rollout(s.Hosts/10, 1, 5); o.Wait > 0.5 {
		t.Errorf("a request waits for %.2f s, all votes together take the leader 2 s", o.Wait)
	}
}

// Followers of a group that fills have read all of it at the end, with no more
// lists than their pause allows.
func TestSim_Join(t *testing.T) {
	s := smallSim(1000, 2)
	o := s.Join()
	registrations, lists := 3*s.Members, s.Followers*(1+int((s.Splay.Seconds()+1)/listPause.Seconds()))
	if o.Requests <= registrations || o.Requests > registrations+3*lists {
		t.Errorf("%d requests for %d members and %d followers, want at most %d lists and two reads with each", o.Requests, s.Members, s.Followers, lists)
	}
	if o.Seconds < s.Splay.Seconds()-1 || o.Seconds > s.Splay.Seconds()+1 {
		t.Errorf("took %.1f s with a splay of %s", o.Seconds, s.Splay)
	}
}

// A rollout costs a host four reads and three writes. What the coordinator adds comes in
// batches. It takes as long as its checks and turns, and little more.
func TestSim_Rollout(t *testing.T) {
	const parallel, work, check = 100, 5, 5
	s := smallSim(1000, 3)
	o := s.Rollout(parallel, work, check)
	reads, writes := o.Requests-o.Wrote, o.Wrote
	if own := 4 * s.Hosts; reads < own || reads > own+proposal+s.Hosts/4 {
		t.Errorf("%d reads of %d hosts, want 4 a host and a few of the proposer and the coordinator", reads, s.Hosts)
	}
	if own := 3 * s.Hosts; writes < own || writes > own+s.Hosts/2 {
		t.Errorf("%d writes of %d hosts, want 3 a host and the grants in batches", writes, s.Hosts)
	}
	waves := float64(s.Hosts / parallel)
	if least := check + waves*work; o.Seconds < least || o.Seconds > least+waves {
		t.Errorf("it took %.1f s, want a little more than %.0f s", o.Seconds, least)
	}
	if again := s.Rollout(parallel, work, check); again != o {
		t.Errorf("the same simulation differs: %+v and %+v", o, again)
	}
	s.Agents = true
	if told := s.Rollout(parallel, work, check); told.Wrote < 5*s.Hosts || told.Wrote > o.Wrote+2*s.Hosts+50 {
		t.Errorf("hosts that report write %d times, want two a host more than %d, but for the batches", told.Wrote, o.Wrote)
	}
}
