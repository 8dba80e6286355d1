package memzk

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// keeper is a client that keeps a session: it pings every third of the timeout,
// takes the session up when the connection ends, and opens another when the
// server says that it is gone.
type keeper struct {
	s           *Server
	reconnects  int
	expirations int
	session     *raw.Conn
}

const keeperTimeout = 12 * time.Second

func (k *keeper) run(ctx context.Context) {
	var o raw.Options
	for ctx.Err() == nil {
		o.Timeout = keeperTimeout
		c, err := k.open(ctx, o)
		switch {
		case errors.Is(err, raw.ErrRefused):
			k.expirations++
			o = raw.Options{}
			continue
		case err != nil:
			_ = sleep(ctx, time.Second)
			continue
		}
		k.reconnects++
		k.session = c
		if o.SessionID != c.Session.SessionID {
			_, _ = c.Create("/keeper", nil, jute.FlagEphemeral)
		}
		o.SessionID, o.Password = c.Session.SessionID, c.Session.Password
		k.ping(ctx, c)
		c.Drop()
	}
}

func (k *keeper) open(ctx context.Context, o raw.Options) (*raw.Conn, error) {
	nc, err := k.s.Dial(ctx, "tcp", "memzk:2181")
	if err != nil {
		return nil, err
	}
	// As a client with a limit for the handshake.
	stop := time.AfterFunc(3*time.Second, func() { _ = nc.Close() })
	defer stop.Stop()
	return raw.Open(nc, o)
}

func (k *keeper) ping(ctx context.Context, c *raw.Conn) {
	stop := context.AfterFunc(ctx, c.Drop)
	defer stop()
	for {
		dead := time.AfterFunc(keeperTimeout*2/3, c.Drop)
		_, err := c.CallXid(jute.XidPing, jute.OpPing, nil)
		dead.Stop()
		if err != nil || sleep(ctx, keeperTimeout/3) != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestAnHour keeps a session for an hour of virtual time with a restart, a
// partition that it outlives, one that it does not, and an expiry.
func TestAnHour(t *testing.T) {
	began := time.Now()
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		k := &keeper{s: s}
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.run(ctx)
		}()
		wait := func(d time.Duration, present bool, expirations int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := s.Exists("/keeper"); got != present {
				t.Errorf("the ephemeral exists: got %v, want %v", got, present)
			}
			if k.expirations != expirations {
				t.Errorf("expirations: got %d, want %d", k.expirations, expirations)
			}
		}
		wait(10*time.Minute, true, 0)
		s.Restart()
		wait(10*time.Minute, true, 0)
		s.Partition()
		wait(6*time.Second, true, 0)
		s.Heal()
		wait(10*time.Minute, true, 0)
		s.Partition()
		wait(time.Minute, false, 0)
		s.Heal()
		wait(10*time.Minute, true, 1)
		s.ExpireSession(k.session.Session.SessionID)
		wait(20*time.Minute, true, 2)
		cancel()
		<-done
	})
	t.Logf("an hour took %v", time.Since(began))
}
