package zktest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// pollInterval is the pause between two questions to a server that starts.
const pollInterval = 25 * time.Millisecond

// FourLetterWord sends one of ZooKeeper's four-letter commands to addr and
// returns the answer.
func FourLetterWord(ctx context.Context, addr, word string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("send %s: %w", word, err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err = io.WriteString(conn, word); err != nil {
		return "", fmt.Errorf("send %s: %w", word, err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil && len(answer) == 0 {
		return "", fmt.Errorf("read the answer to %s: %w", word, err)
	}
	return string(answer), nil
}

// awaitServing waits until the server, and no other one on its port, serves
// clients. A server that dies because its port is in use is started again: on
// another port if it never served, else on its own, which is free in a moment.
func (s *Server) awaitServing(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), startLimit)
	defer cancel()
	// A server that gets a question too early may never answer it, so the first
	// limits are short. The later ones are long enough for a slow machine.
	limit := 500 * time.Millisecond
	for {
		began := time.Now()
		if s.serving(ctx, limit) {
			s.served = true
			return
		}
		if time.Since(began) >= limit {
			limit = min(2*limit, 10*time.Second)
		}
		if s.proc.ended() {
			s.proc = nil
			if !strings.Contains(s.logTail(8000), "Address already in use") {
				tb.Fatalf("zktest: ZooKeeper ended while starting:\n%s", s.logTail(4000))
			}
			tb.Logf("zktest: %s: %v, starting again", s.Addr(), errPortTaken)
			if !s.served {
				s.port.release()
				s.port = reserve(tb)
			}
			if err := os.Remove(s.logFile()); err != nil {
				tb.Fatalf("zktest: empty the log: %v", err)
			}
			if err := s.exec(tb); err != nil {
				tb.Fatalf("zktest: start ZooKeeper: %v", err)
			}
		}
		if err := pause(ctx, pollInterval); err != nil {
			tb.Fatalf("zktest: ZooKeeper on %s does not serve after %v:\n%s", s.Addr(), startLimit, s.logTail(4000))
		}
	}
}

// serving reports whether this server, and no other, answers and serves sessions. It
// recognizes the server by the data directory in the answer to "conf".
func (s *Server) serving(ctx context.Context, limit time.Duration) bool {
	conf, err := s.ask(ctx, "conf", limit)
	if err != nil || !strings.Contains(conf, s.dataDir()) {
		return false
	}
	return s.mode(ctx, limit) != ""
}

// Mode returns the mode that the server reports, such as "leader".
func (s *Server) Mode(tb testing.TB) string {
	tb.Helper()
	return s.mode(tb.Context(), startLimit)
}

// mode returns "standalone", "leader", "follower" or "observer", or "" while the
// server does not serve.
func (s *Server) mode(ctx context.Context, limit time.Duration) string {
	answer, err := s.ask(ctx, "srvr", limit)
	if err != nil {
		return ""
	}
	_, mode, _ := strings.Cut(answer, "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

// ask sends a four-letter word and waits for the answer until limit.
func (s *Server) ask(ctx context.Context, word string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return FourLetterWord(ctx, s.Addr(), word)
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
