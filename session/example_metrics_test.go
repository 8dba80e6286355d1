package session_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// counts are metrics for a program without Prometheus. Package prom has them for one with it.
type counts struct {
	mu      sync.Mutex // mu guards replies
	replies map[string]int
}

// Done is the end of a request: its reply, or the end of its connection.
func (c *counts) Done(op string, _ time.Duration, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !lost {
		c.replies[op]++
	}
}

func (*counts) Sent()               {}
func (*counts) Bytes(bool, int)     {}
func (*counts) State(session.State) {}
func (*counts) Expired()            {}
func (*counts) Reconnected()        {}
func (*counts) RenewalFailed()      {}
func (*counts) Watches(int)         {}

func ExampleMetrics() {
	cfg, stop := server() // session.Config{Servers: ...}
	defer stop()
	requests := &counts{replies: map[string]int{}}
	var metrics session.Metrics = requests
	cfg.Metrics = metrics
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _, _ = s.Get(ctx, "/a")
	_, _, _ = s.Get(ctx, "/b")
	_ = s.Close()
	requests.mu.Lock()
	defer requests.mu.Unlock()
	fmt.Println(requests.replies["getData"])
	// Output: 2
}
