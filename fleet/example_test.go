package fleet_test

import (
	"context"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A publisher goes back as it goes forward: by a new version.
func ExampleRollback() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx := context.Background()
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	site := fleet.PublishConfig{Path: "/config/site", Author: "me"}
	for _, color := range []string{"blue", "green"} {
		site.Keys, site.Message = map[string][]byte{"color": []byte(color)}, "it is "+color
		if _, err = fleet.Publish(ctx, s, site); err != nil {
			panic(err)
		}
	}
	site.Message = "it was not the color"
	if _, err = fleet.Rollback(ctx, s, site, 0); err != nil {
		panic(err)
	}
	versions, err := config.History(ctx, s, "/config/site")
	if err != nil {
		panic(err)
	}
	for _, v := range versions {
		fmt.Printf("version %d, active %t, rollback of %d: %s\n", v.Number, v.Active, v.RollbackOf, v.Message)
	}
	// Output:
	// version 3, active true, rollback of 1: it was not the color
	// version 2, active false, rollback of 0: it is green
	// version 1, active false, rollback of 0: it is blue
}

// An agent reports about itself, and everybody reads all hosts.
func ExampleAnnouncer() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	announcer := fleet.NewAnnouncer(fleet.AnnouncerConfig{
		ID: "web-1", Host: "web-1.example.org",
		Record: func() fleet.Record { return fleet.Record{Version: "1.2.3", Health: "ok"} },
		Health: func() fleet.Health { return "ok" },
	})
	ended := make(chan error, 1)
	go func() { ended <- announcer.Run(ctx, s) }()
	var hosts []fleet.HostStatus
	for len(hosts) == 0 {
		if hosts, err = fleet.Agents(ctx, s); err != nil {
			panic(err)
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println(hosts[0].ID, hosts[0].Version, hosts[0].Health)
	stop()
	fmt.Println(<-ended)
	// Output:
	// web-1 1.2.3 ok
	// <nil>
}
