package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/memzk"
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
		a.noteOutage(condition.Condition{Code: condition.ZooKeeperUnreachable.Code, Since: time.Now().Add(-outageLeast / 2)})
		a.noteOutage(condition.Condition{Code: condition.ZooKeeperReadOnly.Code, Since: time.Now().Add(-time.Hour)})
		if again := a.Status().ZooKeeper.LastOutage(); !again.Until.Equal(last.Until) {
			t.Errorf("noted %+v", again)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
