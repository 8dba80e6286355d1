package fleet

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	proposal := Proposal{Participants: []string{"a", "b"}, Strategy: Strategy{VoteTimeout: Duration(time.Minute)}}
	skip := proposal
	skip.Strategy.Absent = AbsentSkip
	commit, refuse := Vote{Commit: true}, Vote{Reason: "nginx: [emerg]"}
	tests := []struct {
		name     string
		proposal Proposal
		control  Control
		votes    map[string]Vote
		expired  bool
		want     string // "", commit or a part of the reason
	}{
		{"no votes yet", proposal, Control{}, nil, false, ""},
		{"one of two", proposal, Control{}, map[string]Vote{"a": commit}, false, ""},
		{"all", proposal, Control{}, map[string]Vote{"a": commit, "b": commit}, false, "commit"},
		{"one refuses", proposal, Control{}, map[string]Vote{"b": refuse}, false, "b: nginx: [emerg]"},
		{"absent at the deadline", proposal, Control{}, map[string]Vote{"a": commit}, true, "from b"},
		{"absent skipped", skip, Control{}, map[string]Vote{"a": commit}, true, "commit"},
		{"refusal beats skip", skip, Control{}, map[string]Vote{"a": refuse}, true, "a: nginx"},
		{"operator aborts", proposal, Control{Action: ActionAbort, By: "ann"}, map[string]Vote{"a": commit, "b": commit}, false, "aborted by ann"},
		{"a stranger's vote does not count", proposal, Control{}, map[string]Vote{"x": refuse, "a": commit}, false, ""},
		{"nobody is subscribed", Proposal{}, Control{}, nil, false, "commit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := judge(tt.proposal, tt.control, tt.votes, tt.expired)
			switch {
			case tt.want == "":
				if got != nil {
					t.Errorf("got %+v, want to wait", got)
				}
			case got == nil:
				t.Errorf("got to wait, want %q", tt.want)
			case tt.want == "commit":
				if !got.Commit {
					t.Errorf("got %+v, want commit", got)
				}
			case got.Commit || !strings.Contains(got.Reason, tt.want):
				t.Errorf("got %+v, want an abort with %q", got, tt.want)
			}
		})
	}
}

func TestMay(t *testing.T) {
	tests := []struct {
		name string
		done bool
		own  *HostRecord
		want bool
	}{
		{"no record", false, nil, false},
		{"started", false, &HostRecord{State: HostStarted}, true},
		{"done", false, &HostRecord{State: HostDone}, true},
		{"failed", false, &HostRecord{State: HostFailed}, false},
		{"rollout done, late joiner", true, nil, true},
		{"rollout done, our failure tolerated", true, &HostRecord{State: HostFailed}, false},
	}
	for _, tt := range tests {
		if version, previous := May(tt.done, tt.own); version != tt.want || previous == tt.want {
			t.Errorf("%s: got version %v, previous %v", tt.name, version, previous)
		}
	}
}

func TestActivity(t *testing.T) {
	s := Strategy{Parallel: 2}
	a := Activity{Budget: 1}
	if !a.admits(s, "a") {
		t.Fatal("the canary is not admitted")
	}
	a = a.start("a").start("a")
	if a.Started != 1 || !a.admits(s, "a") || a.admits(s, "b") {
		t.Errorf("after the canary started: %+v", a)
	}
	a.Budget = -1
	a = a.start("b")
	if a.admits(s, "c") {
		t.Error("a third host is admitted beside two active ones")
	}
	a = a.finish("a", true)
	if !slices.Equal(a.Active, []string{"b"}) || a.Failed != 1 || !a.admits(s, "c") {
		t.Errorf("after one failed: %+v", a)
	}
}

func TestRank(t *testing.T) {
	ids := []string{"a", "b", "c", "d"}
	var ranks []int
	for _, id := range ids {
		ranks = append(ranks, rank("r-0000000001", id, ids))
	}
	slices.Sort(ranks)
	if !slices.Equal(ranks, []int{0, 1, 2, 3}) {
		t.Errorf("ranks %v are not a permutation", ranks)
	}
	if got := rank("r-0000000001", "x", ids); got < maxContenders {
		t.Errorf("a stranger has rank %d", got)
	}
}

func TestRolloutNumber(t *testing.T) {
	for name, want := range map[string]int64{"r-0000000000": 0, "r-0000000042": 42, "r-42": -1, "current": -1, "r-00000000-1": -1} {
		got, ok := rolloutNumber(name)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: got %d, %v", name, got, ok)
		}
	}
}
