package election_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// counts are metrics for a program without Prometheus. Package prom has them for one with it.
type counts struct {
	terms atomic.Int64
	leads atomic.Bool
}

func (c *counts) Elected(string) { c.terms.Add(1) }

func (c *counts) Leads(_ string, mine bool) { c.leads.Store(mine) }

func ExampleMetrics() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx := context.Background()
	s, err := session.Dial(ctx, session.Config{
		Servers: []string{"memory:2181"}, Timeout: 10 * time.Second, Dial: server.Dial,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	var seen counts
	var metrics election.Metrics = &seen
	c := election.New(election.Config{
		Name: "nightly", Path: "/elections/nightly", ID: "host-1", Once: true, Metrics: metrics,
		Lead: func(_ context.Context, t election.Term) { fmt.Println("works under a fence:", t.ID > 0) },
	})
	fmt.Println(c.Run(ctx, s, nil))
	fmt.Println("terms:", seen.terms.Load(), "leads now:", seen.leads.Load())
	// Output:
	// works under a fence: true
	// <nil>
	// terms: 1 leads now: false
}
