package fleet

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// upkeep is the maintenance of a host as a test switches it.
type upkeep struct {
	mu      sync.Mutex    // guards what follows
	reason  string        // empty: there is none
	changed chan struct{} // closed when that changes
	reads   int           // after so many more it ends; 0: it does not
}

// maintain puts the host into maintenance, or with "" takes it out.
func (u *upkeep) maintain(reason string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reason = reason
	if u.changed != nil {
		close(u.changed)
	}
	u.changed = make(chan struct{})
}

func (u *upkeep) maintenance() (string, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.changed == nil {
		u.changed = make(chan struct{})
	}
	reason, changed := u.reason, u.changed
	if u.reads == 1 {
		u.reason, u.changed = "", make(chan struct{})
		close(changed)
	}
	u.reads = max(0, u.reads-1)
	return reason, changed
}

// endAfter ends the maintenance when it was asked about so often.
func (u *upkeep) endAfter(reads int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reads = reads
}

// subscribeMaintained makes the host's subscription say that it is in maintenance.
func (w *world) subscribeMaintained(id string) {
	w.t.Helper()
	data := []byte(`{"version":1,"state":"` + StateMaintenance + `","error":"kernel"}`)
	if _, err := w.desk.Set(w.t.Context(), SubscriptionPath(root, id), data, -1); err != nil {
		w.t.Fatal(err)
	}
}

func TestMaintenance_HostDoesNotVoteIsNotStartedAndIsShown(t *testing.T) {
	testhelp.InTurn(t, 2)
	inBubble(t, 4, func(t *testing.T, w *world) {
		h := w.hosts["web-02"]
		h.refuse[2] = "it would refuse"
		h.maintain("kernel")
		w.subscribeMaintained("web-02")
		name := w.propose(2, Strategy{Parallel: 1})
		state := w.awaitPhase(name, PhaseDone)
		if state.Gate.Counts.Done != 3 || !slices.Equal(state.Gate.Skipped, []string{"web-02"}) {
			t.Errorf("got %+v", state.Gate)
		}
		if r := state.Hosts["web-02"]; r.State != HostSkipped || !strings.Contains(r.Error, "kernel") {
			t.Errorf("its record is %+v", r)
		}
		time.Sleep(time.Hour) // virtual
		h.stop()
		h.start()
		time.Sleep(time.Hour)
		if slices.Contains(h.versions(), 2) {
			t.Errorf("it used %v during its maintenance", h.versions())
		}
		h.maintain("")
		w.await("it to use version 2 after its maintenance", func() bool { return h.version() == 2 })
	})
}

func TestMaintenance_EndsWhileTheRolloutIsOpen(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		h := w.hosts["web-01"]
		h.maintain("disk")
		w.subscribeMaintained("web-01")
		hold := make(chan struct{})
		for _, id := range []string{"web-00", "web-02"} {
			w.hosts[id].hold = hold
		}
		name := w.propose(2, Strategy{Parallel: 1})
		w.await("it to stand aside", func() bool {
			s, err := Read(t.Context(), w.desk, root, name)
			return err == nil && s.Hosts["web-01"].State == HostSkipped
		})
		h.maintain("")
		close(hold)
		if state := w.awaitPhase(name, PhaseDone); state.Hosts["web-01"].State != HostDone || state.Gate.Counts.Done != 3 {
			t.Errorf("its record is %+v, closed %+v", state.Hosts["web-01"], state.Gate)
		}
		if w.peak > 1 {
			t.Errorf("%d hosts at once", w.peak)
		}
	})
}

// Whenever the maintenance ends, a host that has missed a version goes over to it
// before it says what it uses.
func TestMaintenance_EndsBetweenTwoLooks(t *testing.T) {
	testhelp.InTurn(t, 2)
	for reads := 1; reads <= 4; reads++ {
		inBubble(t, 2, func(t *testing.T, w *world) {
			h := w.hosts["web-01"]
			h.maintain("disk")
			w.subscribeMaintained("web-01")
			w.awaitPhase(w.propose(2, Strategy{Parallel: 1}), PhaseDone)
			hold := make(chan struct{})
			w.hosts["web-00"].hold = hold
			name := w.propose(3, Strategy{Parallel: 1})
			w.await("the turn of the other host", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.active["web-00"] })
			h.stop()
			h.start() // a new process knows the gate
			time.Sleep(time.Minute)
			h.endAfter(reads)
			h.maintain("disks")
			w.await("it to wait for its turn", func() bool {
				s, err := Read(t.Context(), w.desk, root, name)
				return err == nil && s.Hosts["web-01"].State == HostWait
			})
			close(hold)
			if r := w.awaitPhase(name, PhaseDone).Hosts["web-01"]; r.State != HostDone || r.From != 2 {
				t.Errorf("it ends after %d looks: its record is %+v", reads, r)
			}
		})
	}
}

func TestMaintenance_BeginsAfterTheProposal(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		w.hosts["web-00"].maintain("fan") // its subscription does not say so yet
		state := w.awaitPhase(w.propose(2, Strategy{Parallel: 3}), PhaseDone)
		if v := state.Hosts["web-00"]; v.State != HostSkipped || !slices.Equal(state.Gate.Skipped, []string{"web-00"}) {
			t.Errorf("vote %+v, closed %+v", v, state.Gate)
		}
	})
}

func TestMaintenance_BeginsWhileTheHostWaitsForItsTurn(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		hold := make(chan struct{})
		w.hosts["web-00"].hold = hold
		name := w.propose(2, Strategy{Parallel: 1, Order: []string{"web-00"}})
		w.await("the first host", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.active["web-00"] })
		w.hosts["web-01"].maintain("now")
		close(hold)
		state := w.awaitPhase(name, PhaseDone)
		if !slices.Equal(state.Gate.Skipped, []string{"web-01"}) || !slices.Equal(w.hosts["web-01"].versions(), []int64{1}) {
			t.Errorf("closed %+v, it used %v", state.Gate, w.hosts["web-01"].versions())
		}
	})
}

func TestMaintenance_OfAllHostsLeavesNobodyToCheck(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		for id, h := range w.hosts {
			h.maintain("all")
			w.subscribeMaintained(id)
		}
		if _, _, err := voters(t.Context(), w.desk, root, nil); !errors.Is(err, ErrNobody) {
			t.Errorf("before: got %v", err)
		}
		err := w.awaitPhase(w.propose(2, Strategy{}), PhaseAborted).Err()
		if !strings.Contains(err.Error(), ErrNobody.Error()) {
			t.Errorf("got %v, want ErrNobody", err)
		}
	})
}

// A host that starts in maintenance uses what it used before. That does not count as
// caught up, however soon the maintenance ends: the host goes over to what ready names
// before it votes.
func TestMaintenance_EndsWhileTheHostStarts(t *testing.T) {
	testhelp.OnlyAll(t, "minutes of a fleet with the race detector")
	for reads := 1; reads <= 4; reads++ {
		inBubble(t, 3, func(t *testing.T, w *world) {
			h, silent := w.hosts["web-01"], w.hosts["web-00"]
			h.maintain("disk")
			w.awaitPhase(w.propose(2, Strategy{Parallel: 1}), PhaseDone)
			silent.stop()
			_ = w.server.Create(SubscriptionPath(root, silent.id), nil) // called, and silent
			name := w.propose(3, Strategy{Parallel: 1, Absent: AbsentSkip, VoteTimeout: Duration(time.Minute)})
			says := func(what string) HostRecord {
				t.Helper()
				var r HostRecord
				w.await("it to say "+what, func() bool {
					s, err := Read(t.Context(), w.desk, root, name)
					if err == nil {
						r = s.Hosts[h.id]
					}
					return r.State == what
				})
				return r
			}
			says(HostSkipped)
			h.stop()
			h.endAfter(reads)
			h.start()
			if r := says(HostCommit); r.From != 2 || h.version() != 2 {
				t.Errorf("maintenance ends after %d looks: it used %v, and says %+v", reads, h.versions(), r)
			}
			w.awaitPhase(name, PhaseDone)
		})
	}
}
