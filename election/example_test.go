package election_test

import (
	"context"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/session"
)

func ExampleCandidate() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := session.Dial(ctx, session.Config{
		Servers: []string{"memory:2181"}, Timeout: 10 * time.Second, Dial: server.Dial,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	c := election.New(election.Config{
		Name: "nightly", Path: "/elections/nightly", ID: "host-1",
		Lead: func(ctx context.Context, t election.Term) {
			// Writes of a leader carry the guard, so that they fail when the
			// term is over; ctx ends with the term.
			_, err := s.Multi(ctx, t.Guard(), session.CreateOp("/done", nil, session.Persistent))
			fmt.Println("leading:", t.ID > 0, err)
			cancel()
			<-ctx.Done()
		},
	})
	fmt.Println(c.Run(ctx, s, nil))
	// Output:
	// leading: true <nil>
	// <nil>
}
