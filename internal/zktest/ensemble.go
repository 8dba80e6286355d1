package zktest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// Ensemble is a few servers that form a quorum.
type Ensemble struct {
	Servers []*Server
	ports   []*reservation // for votes and transactions between the servers
}

// StartEnsemble starts n servers that end with the test, and waits until all
// of them serve. It skips a quick run.
func StartEnsemble(tb testing.TB, n int, opts ...Options) *Ensemble {
	tb.Helper()
	testhelp.OnlyAll(tb, "it starts an ensemble of ZooKeepers")
	o, dir := oneOption(opts), tb.TempDir()
	e := &Ensemble{}
	tb.Cleanup(func() { e.close(tb) })
	// The limits are counted in ticks; both are seconds, because a short tick
	// must not make a slow machine lose its quorum.
	seconds := func(s int64) int64 { return max(5, s*1000/o.TickTime.Milliseconds()) }
	lines := []string{
		fmt.Sprintf("initLimit=%d", seconds(20)), fmt.Sprintf("syncLimit=%d", seconds(10)),
		"standaloneEnabled=false", "quorumListenOnAllIPs=false",
	}
	for i := range n {
		s := newServer(tb, filepath.Join(dir, strconv.Itoa(i+1)), o)
		s.id = i + 1
		e.Servers = append(e.Servers, s)
		data, vote := reserve(tb), reserve(tb)
		e.ports = append(e.ports, data, vote)
		s.member = fmt.Sprintf("server.%d=127.0.0.1:%d:%d", s.id, data.port, vote.port)
		switch observer := i >= n-o.Observers; {
		case observer:
			s.member += ":observer"
		case o.Reconfig:
			s.member += ":participant"
		}
		if o.Reconfig {
			s.member += ";" + s.Addr()
		}
		lines = append(lines, s.member)
	}
	if o.Reconfig {
		lines = append(lines, "reconfigEnabled=true")
	}
	for _, s := range e.Servers {
		s.quorum = lines
		if i := s.id - 1; i >= n-o.Observers {
			s.quorum = append(slices.Clone(lines), "peerType=observer")
		}
		s.launch(tb)
	}
	for _, s := range e.Servers {
		s.awaitServing(tb)
	}
	return e
}

func (e *Ensemble) close(tb testing.TB) {
	tb.Helper()
	for _, s := range e.Servers {
		s.close()
		if tb.Failed() {
			tb.Logf("end of the log of %s:\n%s", s.Addr(), s.logTail(2000))
		}
	}
	for _, p := range e.ports {
		p.release()
	}
}

// Member returns the line that names the server in the configuration of its ensemble.
func (s *Server) Member() string { return s.member }

// Addrs returns the addresses of all servers.
func (e *Ensemble) Addrs() []string {
	addrs := make([]string, 0, len(e.Servers))
	for _, s := range e.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// ConnectString returns the addresses of all servers, separated by commas.
func (e *Ensemble) ConnectString() string { return strings.Join(e.Addrs(), ",") }

// Leader waits until one of the running servers leads and returns it.
func (e *Ensemble) Leader(tb testing.TB) *Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startLimit)
	defer cancel()
	for {
		for _, s := range e.Servers {
			if s.proc != nil && s.mode(ctx, 5*time.Second) == "leader" {
				return s
			}
		}
		if err := pause(ctx, pollInterval); err != nil {
			tb.Fatalf("zktest: no leader after %v", startLimit)
		}
	}
}

// Followers waits for a leader and returns the other running servers.
func (e *Ensemble) Followers(tb testing.TB) []*Server {
	tb.Helper()
	leader := e.Leader(tb)
	var followers []*Server
	for _, s := range e.Servers {
		if s != leader && s.proc != nil {
			followers = append(followers, s)
		}
	}
	return followers
}

// Restart starts the stopped server s of the ensemble without waiting: without
// a quorum it cannot serve. AwaitServing waits.
func (e *Ensemble) Restart(tb testing.TB, s *Server) {
	tb.Helper()
	s.launch(tb)
}

// AwaitServing waits until all running servers serve.
func (e *Ensemble) AwaitServing(tb testing.TB) {
	tb.Helper()
	for _, s := range e.Servers {
		if s.proc != nil {
			s.awaitServing(tb)
		}
	}
}
