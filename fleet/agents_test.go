package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// announced is a simulated agent that announces itself.
type announced struct {
	s       *session.Session
	stop    context.CancelFunc
	done    chan error
	changed chan struct{}

	mu     sync.Mutex // guards what follows
	record Record
	rival  string
	asked  int // how often the record was
}

func (a *announced) say(r Record) {
	a.mu.Lock()
	a.record = r
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *announced) reported() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rival
}

func announce(t *testing.T, w *world, id, host string, r Record) *announced {
	t.Helper()
	a := &announced{s: w.dial(host), done: make(chan error, 1), changed: make(chan struct{}, 1), record: r}
	n := NewAnnouncer(AnnouncerConfig{
		ID: id, Host: host, Changed: a.changed,
		Record: func() Record {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.asked++
			return a.record
		},
		Health: func() Health {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.record.Health
		},
		Rival: func(text string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.rival = text
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	go func() { a.done <- n.Run(ctx, a.s) }()
	return a
}

// end stops the agent on purpose.
func (a *announced) end(t *testing.T) {
	t.Helper()
	a.stop()
	if err := <-a.done; err != nil {
		t.Errorf("announcing ended with %v", err)
	}
	a.s.Close()
}

func seen(t *testing.T, w *world) map[string]HostStatus {
	t.Helper()
	list, err := Agents(t.Context(), w.desk)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]HostStatus{}
	for _, h := range list {
		got[h.ID] = h
	}
	return got
}

// TestAgents_LostAndStopped: the record distinguishes a crash from a clean stop, until the
// host is forgotten, or seven days are over.
func TestAgents_LostAndStopped(t *testing.T) {
	testhelp.InTurn(t, 2)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		keeper := announce(t, w, "keeper", "k", Record{Health: OK})
		left := announce(t, w, "left", "l", Record{Health: OK})
		crashed := announce(t, w, "crashed", "c", Record{Health: OK})
		time.Sleep(time.Second)
		for id, h := range seen(t, w) {
			if h.Health != OK {
				t.Errorf("%s: got %v", id, h)
			}
		}
		left.end(t)
		w.server.ExpireSession(crashed.s.ID())
		<-crashed.done
		time.Sleep(time.Second)
		got := seen(t, w)
		if got["left"].Health != Stopped || got["left"].At.IsZero() || got["crashed"].Health != Lost || got["crashed"].At.IsZero() {
			t.Errorf("got %+v", got)
		}
		lost := got["crashed"].At
		time.Sleep(time.Hour)
		if h := seen(t, w)["crashed"]; !h.At.Equal(lost) {
			t.Errorf("lost since %v, and then since %v", lost, h.At)
		}
		// Who comes again is no longer lost.
		again := announce(t, w, "crashed", "c", Record{Health: Degraded})
		time.Sleep(time.Second)
		if h := seen(t, w)["crashed"]; h.Health != Degraded {
			t.Errorf("got %+v", h)
		}
		if err := Forget(t.Context(), w.desk, "crashed"); !errors.Is(err, ErrLive) {
			t.Errorf("a host that runs was forgotten: %v", err)
		}
		w.server.ExpireSession(again.s.ID())
		<-again.done
		if h := seen(t, w)["crashed"]; h.Health != Lost {
			t.Errorf("got %+v", h)
		}
		if err := Forget(t.Context(), w.desk, "crashed"); err != nil {
			t.Error(err)
		}
		if err := Forget(t.Context(), w.desk, "crashed"); !errors.Is(err, session.ErrNoNode) {
			t.Errorf("got %v", err)
		}
		if err := sweep(t.Context(), w.desk, "keeper", time.Now().Add(ForgetAfter-2*time.Hour)); err != nil || seen(t, w)["left"].Health != Stopped {
			t.Errorf("forgotten too early, %v", err)
		}
		if err := sweep(t.Context(), w.desk, "keeper", time.Now().Add(ForgetAfter)); err != nil {
			t.Error(err)
		}
		if got := seen(t, w); len(got) != 1 || got["keeper"].Health != OK {
			t.Errorf("after %v: got %+v", ForgetAfter, got)
		}
		keeper.end(t)
	})
}

// TestAnnouncer_EarlyChange: what changes while the host is still being written
// down is announced, too.
func TestAnnouncer_EarlyChange(t *testing.T) {
	for wait := 10 * time.Millisecond; wait < 500*time.Millisecond; wait += 30 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.close()
			w.server.Delay(jute.OpGetData, 100*time.Millisecond)
			a := announce(t, w, "web", "host-a", Record{Health: OK})
			time.Sleep(wait)
			a.say(Record{Health: Failing})
			time.Sleep(5 * time.Second)
			if got := seen(t, w)["web"]; got.Health != Failing {
				t.Errorf("changed after %s: the record is %+v", wait, got)
			}
			a.end(t)
		})
	}
}

// TestAnnouncer_OneID: two agents with one id both report it, and do not take each
// other's record. The report ends when one of them goes.
func TestAnnouncer_OneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		first := announce(t, w, "web", "host-a", Record{Health: OK, Version: "first"})
		time.Sleep(time.Second)
		short, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		indifferent := NewAnnouncer(AnnouncerConfig{ID: "web", Record: func() Record { return Record{} }, Health: func() Health { return OK }})
		third := w.dial("host-c")
		must(t, indifferent.Run(short, third))
		third.Close()
		second := announce(t, w, "web", "host-b", Record{Health: OK, Version: "second"})
		time.Sleep(time.Minute)
		if got := seen(t, w)["web"]; got.Version != "first" {
			t.Errorf("the record is %+v", got)
		}
		if !strings.Contains(first.reported(), "host-b") || !strings.Contains(second.reported(), fmt.Sprintf("0x%x", first.s.ID())) {
			t.Errorf("got %q and %q", first.reported(), second.reported())
		}
		first.end(t)
		time.Sleep(time.Minute)
		if got := seen(t, w)["web"]; got.Version != "second" || got.Health != OK || second.reported() != "" {
			t.Errorf("the record is %+v; %q", got, second.reported())
		}
		second.end(t)
		if h := seen(t, w)["web"]; h.Health != Stopped {
			t.Errorf("got %+v", h)
		}
	})
}

// TestAnnouncer_RestartIsNoRival: a restarted agent waits until the record of its dying
// session is gone, and reports no rival.
func TestAnnouncer_RestartIsNoRival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		first := announce(t, w, "web", "host-a", Record{Health: OK})
		time.Sleep(time.Second)
		second := announce(t, w, "web", "host-a", Record{Health: OK, Version: "second"})
		time.Sleep(second.s.Timeout())
		w.server.ExpireSession(first.s.ID())
		<-first.done
		time.Sleep(time.Second)
		if got := seen(t, w)["web"]; got.Version != "second" || second.reported() != "" {
			t.Errorf("the record is %+v; %q", got, second.reported())
		}
		second.end(t)
	})
}

// TestAnnouncer_Pace: what is worse is written at once, a crowd of good news folded.
func TestAnnouncer_Pace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		a := announce(t, w, "web", "h", Record{Health: OK})
		time.Sleep(5 * time.Second)
		a.say(Record{Health: Failing})
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		if h := seen(t, w)["web"]; h.Health != Failing {
			t.Errorf("got %+v", h)
		}
		_, before, err := w.desk.Exists(t.Context(), AgentPath("web"))
		if err != nil || !before {
			t.Fatal(err)
		}
		a.mu.Lock()
		asked := a.asked
		a.mu.Unlock()
		first, _, _ := w.desk.Exists(t.Context(), AgentPath("web"))
		for i := range 100 {
			a.say(Record{Health: OK, Version: fmt.Sprint(i)})
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		last, _, _ := w.desk.Exists(t.Context(), AgentPath("web"))
		if h := seen(t, w)["web"]; h.Version != "99" {
			t.Errorf("got %+v", h)
		}
		if n := last.Version - first.Version; n > 8 {
			t.Errorf("%d writes in 8 seconds", n)
		}
		if a.asked-asked > 20 {
			t.Errorf("the record was made %d times for %d writes", a.asked-asked, last.Version-first.Version)
		}
		a.end(t)
	})
}

// TestAnnouncer_KnownIsNotWrittenByItself: a host that takes part in a rollout writes
// its record once, when it uses the version. It says that it knows the version by
// itself only when its turn does not come soon.
func TestAnnouncer_KnownIsNotWrittenByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		use := func(known, accepted int64) Record {
			return Record{Health: OK, Configs: map[string]ConfigUse{"site": {Known: known, Accepted: accepted, Path: root}}}
		}
		a := announce(t, w, "web", "h", use(1, 1))
		writes := func() int32 {
			t.Helper()
			st, _, err := w.desk.Exists(t.Context(), AgentPath("web"))
			if err != nil {
				t.Fatal(err)
			}
			return st.Version
		}
		time.Sleep(5 * time.Second)
		before := writes()
		a.say(use(2, 1))
		time.Sleep(5 * time.Second)
		a.say(use(2, 2))
		time.Sleep(5 * time.Second)
		if n := writes() - before; n != 1 {
			t.Errorf("%d writes for one rollout, want one", n)
		}
		a.say(use(3, 2))
		time.Sleep(15 * time.Second)
		if h := seen(t, w)["web"]; h.Configs["site"].Known != 3 {
			t.Errorf("15 s after the host has read version 3 its record says %+v", h.Configs)
		}
		a.end(t)
	})
}

// TestRecord_Bound: a record has at most 1 kB, says what it leaves out, and leaves
// out what is well before what is not.
func TestRecord_Bound(t *testing.T) {
	r := Record{
		Version: strings.Repeat("v", 500), Health: Failing, Maintenance: strings.Repeat("é", 500), Files: map[string]string{}, Services: map[string]ServiceUse{},
		Configs: map[string]ConfigUse{"site": {Known: 7, Accepted: 6}},
	}
	for i := range 300 {
		r.Files[fmt.Sprintf("template-%d\"<&", i)] = "ok@123456"
		r.Services[fmt.Sprintf("service-%d", i)] = ServiceUse{State: "registered"}
		r.Faults = append(r.Faults, Fault{Code: "template-failed", Subject: strings.Repeat("x", 500), Stage: "check", Exit: i, Digest: "01234567"})
		r.Leads, r.Holds = append(r.Leads, fmt.Sprint("election-", i)), append(r.Holds, fmt.Sprint("group-", i))
	}
	r.Services["web"] = ServiceUse{State: "critical", Check: "http", Exit: 2}
	data := r.encode()
	if len(data) > recordMax {
		t.Errorf("got %d bytes", len(data))
	}
	got := decodeHost("h", data)
	if got.Health != Failing || got.Services["web"].Check != "http" || len(got.Faults) == 0 || got.Configs["site"].Accepted != 6 {
		t.Errorf("got %s", data)
	}
	for field, all := range map[string]int{"files": 300, "faults": 300, "services": 301, "leads": 300, "holds": 300} {
		have := map[string]int{"files": len(got.Files), "faults": len(got.Faults), "services": len(got.Services), "leads": len(got.Leads), "holds": len(got.Holds)}[field]
		if have+got.More[field] != all {
			t.Errorf("%s: %d and %d left out, of %d", field, have, got.More[field], all)
		}
	}
	small := Record{Health: OK, Files: map[string]string{"web": "ok@7"}}
	if h := decodeHost("h", small.encode()); h.Files["web"] != "ok@7" || h.More != nil {
		t.Errorf("got %+v", h)
	}
}

// A service in maintenance is a detail of its host, unless the whole host is in maintenance.
func TestAgents_ServiceInMaintenance(t *testing.T) {
	for maintenance, want := range map[string]string{"": "service web in maintenance", "disks": "maintenance: disks"} {
		r := Record{Health: OK, Maintenance: maintenance, Services: map[string]ServiceUse{"web": {State: "maintenance"}, "db": {State: "registered"}}}
		if h := decodeHost("h", r.encode()); h.Detail != want {
			t.Errorf("got %q, want %q", h.Detail, want)
		}
	}
}

// TestAgents_Garbage: a record that is not one is a host that is failing.
func TestAgents_Garbage(t *testing.T) {
	for _, data := range []string{"", "\xff{", `{"health":17}`, `{"health":"splendid"}`, `{"health":"ok","files":3}`, strings.Repeat(" ", foreignMax) + `{"health":"ok"}`} {
		if h := decodeHost("h", []byte(data)); h.Health != Failing || h.Detail == "" {
			t.Errorf("%.40q: got %+v", data, h)
		}
	}
	if h := decodeHost("h", []byte(`{"health":"ok","new":[1]}`)); h.Health != OK {
		t.Errorf("got %+v", h)
	}
}

func FuzzDecodeHost(f *testing.F) {
	data, _ := json.Marshal(Record{Health: OK, Files: map[string]string{"a": "ok"}})
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		h := decodeHost("h", data)
		if h.Health.Rank() < 0 || len(h.Detail) > 600 {
			t.Errorf("got %+v", h)
		}
		if n := len(h.encode()); n > recordMax {
			t.Errorf("encoded again it has %d bytes", n)
		}
	})
}
