package election_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
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

// The candidate stands again in each session.
func ExampleCandidate_Serve() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sessions, err := session.New(session.Config{Servers: []string{"memory:2181"}, Dial: server.Dial})
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- sessions.Run(ctx) }()
	terms := 0
	worker := election.New(election.Config{
		Name: "worker", Path: "/elections/worker", ID: "host-1",
		Lead: func(term context.Context, _ election.Term) {
			if terms++; terms == 2 {
				fmt.Println("leads again in the next session")
				cancel()
				return
			}
			for _, id := range server.SessionIDs() {
				server.ExpireSession(id)
			}
			<-term.Done()
			fmt.Println("expired:", errors.Is(context.Cause(term), session.ErrExpired))
		},
	})
	fmt.Println("served:", worker.Serve(ctx, sessions))
	<-ended
	// Output:
	// expired: true
	// leads again in the next session
	// served: <nil>
}
