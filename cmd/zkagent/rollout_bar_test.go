package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/term"
)

// rolloutStates are what a follower sees of one rollout of four hosts.
func rolloutStates() []*fleet.State {
	proposal := fleet.Proposal{Version: 2, Hosts: 4, Strategy: fleet.Strategy{Parallel: 2, Canary: 1}}
	voting, canary := fleet.Gate{State: fleet.GateVoting}, fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveCanary}
	open, paused := fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveAll}, fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveAll, Paused: true}
	halted := fleet.Gate{State: fleet.GateHalted, Wave: fleet.WaveAll, Host: "c", Reason: "exit status 1"}
	record := func(states ...string) map[string]fleet.HostRecord {
		hosts := map[string]fleet.HostRecord{}
		for i, state := range states {
			r := fleet.HostRecord{State: state}
			switch state {
			case fleet.HostSkipped:
				r.Error = "maintenance: disk"
			case fleet.HostFailed:
				r.Error = "exit status 1"
			}
			hosts[string(rune('a'+i))] = r
		}
		return hosts
	}
	const commit, started, done, failed, skipped = fleet.HostCommit, fleet.HostStarted, fleet.HostDone, fleet.HostFailed, fleet.HostSkipped
	states := []*fleet.State{
		{Gate: voting},
		{Gate: voting, Hosts: record(commit, commit)},
		{Gate: canary, Hosts: record(commit, commit, commit, skipped)},
		{Gate: open, Hosts: record(done, started, commit, skipped)},
		{Gate: paused, Hosts: record(done, done, commit, skipped)},
		{Gate: halted, Hosts: record(done, done, failed, skipped)},
	}
	for _, s := range states {
		s.Proposal, s.Called = proposal, []string{"a", "b", "c", "d"}
	}
	return states
}

func TestRolloutFrame(t *testing.T) {
	want := []string{
		" vote     ░░░░░░░░░░░░░░░░░░░░░░░░  0/4",
		" vote     ████████████░░░░░░░░░░░░  2/4",
		" canary   ░░░░░░░░░░░░░░░░░░░░░░░░  0/1  then 2 at a time, 1 in maintenance",
		" roll     ████████░░░░░░░░░░░░░░░░  1/3  2 at a time, 1 in maintenance",
		" roll     ████████████████░░░░░░░░  2/3  paused, 1 in maintenance",
		" roll     ████████████████░░░░░░░░  2/3  halted, 1 failed, 1 in maintenance",
	}
	for i, state := range rolloutStates() {
		if got := rolloutFrame(state, time.Time{}); got != want[i] {
			t.Errorf("state %d:\n got %q\nwant %q", i, got, want[i])
		}
	}
	aborted := &fleet.State{Gate: fleet.Gate{State: fleet.GateClosed, Result: fleet.ResultAborted, Reason: "no"}}
	if got := rolloutFrame(aborted, time.Time{}); got != "" {
		t.Errorf("aborted: got %q", got)
	}
}

// TestRolloutFollower_Terminal: what a terminal gets is bars that are drawn in
// place, with a line for each failure.
func TestRolloutFollower_Terminal(t *testing.T) {
	var out bytes.Buffer
	f := newRolloutFollower(&globals{Console: term.Console{Err: &out}}, target{name: "site"}, true)
	for _, state := range rolloutStates() {
		f.see(state)
		f.see(state) // nothing is told twice
	}
	f.bar.end()
	const redraw = "\r\x1b[K"
	const voted = redraw + " vote     ████████████████████████  4/4\n"
	frames := make([]string, 0, 6)
	for _, state := range rolloutStates() {
		frames = append(frames, redraw+rolloutFrame(state, time.Time{}))
	}
	want := strings.Join([]string{
		"site: phase voting\n", frames[0], frames[1],
		redraw + "site: vote d: skipped: maintenance: disk\n", "site: decision commit\n", voted, "site: phase rolling\n",
		"site: host d: skipped: maintenance: disk\n", frames[2], frames[3],
		"\nsite: phase paused\n", frames[4],
		redraw + "site: host c: failed: exit status 1\n", frames[5], "\nsite: phase halted\n",
	}, "")
	if got := out.String(); got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestRolloutFollower_Lines: elsewhere each event is a line.
func TestRolloutFollower_Lines(t *testing.T) {
	var out bytes.Buffer
	f := newRolloutFollower(&globals{Console: term.Console{Err: &out}}, target{name: "site"}, false)
	for _, state := range rolloutStates() {
		f.see(state)
	}
	for _, want := range []string{"site: vote a: commit\n", "site: host a: done\n", "site: host b: started\n", "site: host c: failed: exit status 1\n"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("want once %q in\n%s", want, out.String())
		}
	}
	if strings.ContainsAny(out.String(), "\r\x1b█") {
		t.Errorf("a bar is drawn:\n%q", out.String())
	}
}

// TestRolloutFollower_OneAtATime: the follower reads one host after another while hosts
// take turns, and never shows two of them at work.
func TestRolloutFollower_OneAtATime(t *testing.T) {
	type write struct {
		id, state string
	}
	begin := time.Unix(1000, 0)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		ids := []string{"a", "b", "c", "d", "e"}
		var history []write
		for _, id := range ids {
			history = append(history, write{id, fleet.HostCommit})
		}
		opened := len(history)
		for _, i := range r.Perm(len(ids)) { // the coordinator's order is not that of the names
			history = append(history, write{ids[i], fleet.HostStarted}, write{ids[i], fleet.HostDone})
		}
		// at is the record of a host after so many writes.
		at := func(id string, n int) (fleet.HostRecord, fleet.Stamp) {
			for i := n - 1; i >= 0; i-- {
				if history[i].id == id {
					return fleet.HostRecord{State: history[i].state}, fleet.Stamp{Zxid: int64(i + 1), Time: begin.Add(time.Duration(i+1) * time.Second)}
				}
			}
			return fleet.HostRecord{}, fleet.Stamp{}
		}
		var out bytes.Buffer
		f := newRolloutFollower(&globals{Console: term.Console{Out: &out, Err: io.Discard, Format: "ndjson"}}, target{name: "site"}, false)
		for n := 0; n <= len(history); n += 1 + r.IntN(4) {
			s := &fleet.State{Called: ids, Hosts: map[string]fleet.HostRecord{}, At: map[string]fleet.Stamp{}, Whole: int64(n), Gate: fleet.Gate{State: fleet.GateVoting}}
			s.Proposal = fleet.Proposal{Version: 2, Hosts: len(ids), Strategy: fleet.Strategy{Parallel: 1}}
			if n >= opened {
				s.Gate, s.GateAt = fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveAll}, fleet.Stamp{Zxid: int64(opened), Time: begin}
			}
			for _, id := range ids { // each is read a little later
				if rec, stamp := at(id, min(n+r.IntN(4), len(history))); rec.State != "" {
					s.Hosts[id], s.At[id] = rec, stamp
				}
			}
			f.see(s)
		}
		working, last := "", time.Time{}
		for line := range strings.Lines(out.String()) {
			var e rolloutEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Event != "host" {
				continue
			}
			switch {
			case e.Time.Before(last):
				t.Errorf("seed %d: times go back: %s", seed, line)
			case e.State == fleet.HostStarted && working != "":
				t.Errorf("seed %d: %s starts while %s is at work", seed, e.Host, working)
			case e.State == fleet.HostStarted:
				working = e.Host
			case working == e.Host:
				working = ""
			}
			last = e.Time
		}
		if t.Failed() {
			t.Fatalf("%s", &out)
		}
	}
}

// TestRolloutFollower_Waits: the follower says once why a rollout waits, for people and
// for machines.
func TestRolloutFollower_Waits(t *testing.T) {
	states := []*fleet.State{
		{Gate: fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveCanary}, Progress: fleet.Progress{Baked: time.Now().Add(47 * time.Second)}},
		{Gate: fleet.Gate{State: fleet.GateOpen, Wave: fleet.WaveCanary, Paused: true, By: "ann", Reason: "lunch"}},
	}
	for _, s := range states {
		s.Proposal.Strategy = fleet.Strategy{Parallel: 1, Canary: 1, Bake: fleet.Duration(time.Minute)}
		s.Called, s.Hosts = []string{"a", "b"}, map[string]fleet.HostRecord{"a": {State: fleet.HostDone, Canary: true}, "b": {State: fleet.HostCommit}}
	}
	for format, want := range map[string][]string{
		"text":   {"site: baking, 47 s left\n", "site: phase paused: by ann: lunch\n"},
		"ndjson": {`"event":"waiting","state":"bake","reason":"baking, 47 s left","left_seconds":47}`, `"event":"phase","state":"paused","reason":"by ann: lunch"}`},
	} {
		var out bytes.Buffer
		f := newRolloutFollower(&globals{Console: term.Console{Out: &out, Err: &out, Format: format}}, target{name: "site"}, false)
		for _, s := range states {
			f.see(s)
			f.see(s)
		}
		text := regexp.MustCompile(`4[67] s left`).ReplaceAllString(out.String(), "47 s left")
		text = strings.ReplaceAll(text, `"left_seconds":46`, `"left_seconds":47`)
		for _, w := range want {
			if strings.Count(text, w) != 1 {
				t.Errorf("%s: want once %q in\n%s", format, w, text)
			}
		}
	}
}

// The events of a rollout that is over at the first look have the order of their times.
func TestRolloutFollower_TimesInOrder(t *testing.T) {
	at := func(second int) fleet.Stamp {
		return fleet.Stamp{Zxid: int64(second), Time: time.Date(2026, 1, 2, 9, 40, second, 0, time.UTC)}
	}
	var out bytes.Buffer
	f := newRolloutFollower(&globals{Console: term.Console{Out: &out, Err: io.Discard, Format: "ndjson"}}, target{name: "site"}, false)
	f.see(&fleet.State{
		Name: "r-0000000000", Called: []string{"h1"}, Created: at(8).Time, GateAt: at(12), Whole: 12,
		Gate:  fleet.Gate{State: fleet.GateClosed, Result: fleet.ResultDone, By: "h1", Past: []fleet.GateState{{State: fleet.GateOpen, By: "h1", At: at(10).Time}}},
		Hosts: map[string]fleet.HostRecord{"h1": {State: fleet.HostDone, Version: 2}}, At: map[string]fleet.Stamp{"h1": at(11)},
	})
	last := ""
	for line := range strings.Lines(out.String()) {
		_, rest, _ := strings.Cut(line, `"time":"`)
		now, _, _ := strings.Cut(rest, `"`)
		if now < last {
			t.Errorf("%s after %s:\n%s", now, last, out.String())
		}
		last = now
	}
}
