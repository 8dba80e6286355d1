package session_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/session"
)

// A caller reacts to the class of an error, and needs no list of errors.
func ExampleAction() {
	s, end := open()
	defer end()
	ctx := context.Background()
	react := func(action session.Action) {
		switch action {
		case session.Retry:
			fmt.Println("try again in this session, after a look at the znode")
		case session.NewSession:
			fmt.Println("take the next session")
		case session.GiveUp:
			fmt.Println("report it")
		case session.Decide:
			fmt.Println("look at the znode")
		}
	}
	_, _, err := s.Get(ctx, "/missing")
	react(session.ActionFor(err))
	_, _, err = s.Get(ctx, "no-slash")
	react(session.ActionFor(err))
	_ = s.Close()
	_, _, err = s.Get(ctx, "/missing")
	react(session.ActionFor(err))
	err = fmt.Errorf("set /a: %w", session.ErrUnknown)
	react(session.ActionFor(err))
	fmt.Println(session.ActionFor(err)) // for a log
	// Output:
	// look at the znode
	// report it
	// take the next session
	// try again in this session, after a look at the znode
	// retry
}

// An error without a name in this package keeps its code.
func ExampleCodeError() {
	explain := func(err error) string {
		if code, ok := errors.AsType[session.CodeError](err); ok {
			return fmt.Sprintf("look up code %d in KeeperException.Code", code)
		}
		return err.Error()
	}
	// A later version of ZooKeeper may have codes that this package does not know.
	fmt.Println(explain(&session.Error{Op: "getData", Path: "/a", Err: session.CodeError(-999)}))
	fmt.Println(explain(&session.Error{Op: "getData", Path: "/a", Err: session.ErrNoNode}))
	// Output:
	// look up code -999 in KeeperException.Code
	// getData /a: znode does not exist
}

// A program follows the state of its session, for example to stop work that others can see.
func ExampleState() {
	s, end := open()
	defer end()
	over := func(now session.State) bool { return now == session.Closed || now == session.Expired }
	for {
		changed := s.Changed() // before State, so that no change is missed
		now := s.State()       // Suspended while no server answers
		fmt.Println(now)
		if over(now) {
			return
		}
		_ = s.Close()
		<-changed
	}
	// Output:
	// connected
	// closed
}

func ExampleStatus() {
	cfg, stop := server()
	defer stop()
	m, err := session.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	s, err := m.Session(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	report := func(st session.Status) {
		fmt.Println(st.State, st.Server, st.Timeout, st.SessionID == s.ID(), st.Expirations)
	}
	report(m.Status())
	cancel()
	fmt.Println(<-ended)
	// Output:
	// connected zk1:2181 10s true 0
	// <nil>
}

// Each request calls the tracer, and its end the function that the tracer returned.
func ExampleTracer() {
	cfg, stop := server()
	defer stop()
	var tracer session.Tracer = func(_ context.Context, r session.TracedRequest) func(error) {
		began := time.Now()
		return func(err error) {
			fmt.Println(r.Op, r.Path, r.Server, err, time.Since(began) > 0)
		}
	}
	cfg.Trace = tracer
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	_, _, _ = s.Create(ctx, "/a", nil, session.Persistent)
	_, _, _ = s.Get(ctx, "/b")
	// Output:
	// create2 /a zk1:2181 <nil> true
	// getData /b zk1:2181 getData /b: znode does not exist true
}

// A server takes the place of another. Servers allow that with reconfigEnabled=true.
func ExampleReconfiguration() {
	s, end := open()
	defer end()
	text, err := s.Reconfig(context.Background(), session.Reconfiguration{
		Join:  []string{"server.4=zk4:2888:3888:participant;2181"},
		Leave: []string{"1"},
	})
	switch {
	case errors.Is(err, session.ErrReconfigDisabled):
		fmt.Println("set reconfigEnabled=true on the servers")
	case session.ActionFor(err) == session.Retry: // no quorum, or another reconfiguration
		fmt.Println("try again:", err)
	default:
		fmt.Println(text, err)
	}
	// Output: set reconfigEnabled=true on the servers
}
