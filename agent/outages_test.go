package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// After an outage, the status says when ZooKeeper was away and for how long. A connection
// that is made again within a second is none.
func TestOutages_ShownAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		zk := session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: srv.Dial}
		a, err := New(Config{ID: "web", Host: "web", OnStop: "leave", ZooKeeper: zk})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		<-a.Ready()
		for range outagesKept + 1 {
			srv.RefuseDial()
			srv.DropConnections()
			time.Sleep(40 * time.Second) // virtual
			if !a.conds.Has(condition.ZooKeeperUnreachable, "") {
				t.Fatal("ZooKeeper is not away")
			}
			srv.Heal()
			time.Sleep(time.Minute) // virtual
		}
		list := a.Status().ZooKeeper.Outages
		if len(list) != outagesKept {
			t.Fatalf("got %d outages, want the %d latest", len(list), outagesKept)
		}
		last := a.Status().ZooKeeper.LastOutage()
		took := time.Duration(last.Seconds)
		if took < 40*time.Second || took > 60*time.Second || last.Until.Sub(last.Since) != took || last.Reason == "" {
			t.Errorf("got %+v", last)
		}
		srv.DropConnections()
		time.Sleep(outageLeast / 2) // virtual
		if again := a.Status().ZooKeeper.LastOutage(); !again.Until.Equal(last.Until) {
			t.Errorf("noted %+v", again)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The outages outlive the process. One in which the agent restarts is one outage. The time
// in which no agent ran does not count.
func TestOutages_OutliveTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(memzk.Options{TickTime: time.Second})
		defer srv.Close()
		zk := session.Config{Servers: []string{"a:2181"}, Timeout: 20 * time.Second, Dial: srv.Dial}
		cfg := Config{ID: "web", Host: "web", OnStop: "leave", ZooKeeper: zk, StateDir: t.TempDir()}
		live := func(work func(a *Agent)) {
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- a.Run(ctx) }()
			work(a)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		var began time.Time
		live(func(*Agent) {
			time.Sleep(time.Minute) // virtual
			srv.RefuseDial()
			srv.DropConnections()
			began = time.Now()
			time.Sleep(40 * time.Second) // virtual
		})
		time.Sleep(3 * time.Second) // virtual: a restart
		live(func(a *Agent) {
			time.Sleep(40 * time.Second) // virtual
			if list := a.Status().ZooKeeper.Outages; len(list) != 0 {
				t.Errorf("got %+v before the end", list)
			}
		})
		time.Sleep(time.Hour) // virtual: nobody knows how ZooKeeper was
		live(func(*Agent) { time.Sleep(3 * time.Minute) })
		time.Sleep(time.Hour) // virtual
		srv.Heal()
		live(func(a *Agent) {
			<-a.Ready()
			time.Sleep(time.Minute) // virtual
			list := a.Status().ZooKeeper.Outages
			lasts := func(i int, d time.Duration) bool {
				got := time.Duration(list[i].Seconds)
				return (got-d).Abs() <= 10*time.Second && list[i].Until.Sub(list[i].Since) == got
			}
			if len(list) != 2 || list[0].Since.Sub(began) > time.Second || !lasts(0, 80*time.Second) || !lasts(1, 3*time.Minute) {
				t.Errorf("got %+v, want one outage since %s, and one of three minutes", list, began)
			}
		})
	})
}
