package memzk

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// TestOneWayCuts cuts one client off, in one direction, and not the other.
func TestOneWayCuts(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		a, b := dialAddr(t, s, "a:2181"), dialAddr(t, s, "b:2181")
		s.CutServerToClient("a:2181")
		if err := a.Send(1, jute.OpCreate, raw.Body("/from-a", nil, raw.OpenACL, 0)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !s.Exists("/from-a") {
			t.Error("a request over a line that is open did not arrive")
		}
		s.Heal("a:2181")
		if r, err := a.Receive(); err != nil || r.Xid != 1 {
			t.Errorf("after heal: xid %d, %v", r.Xid, err)
		}
		s.CutClientToServer("a:2181")
		if err := a.Send(2, jute.OpCreate, raw.Body("/late", nil, raw.OpenACL, 0)); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, b, "/from-b", 0)
		if s.Exists("/late") {
			t.Error("a request crossed a cut line")
		}
		s.Heal()
		if r, err := a.Receive(); err != nil || r.Xid != 2 {
			t.Errorf("after heal: xid %d, %v", r.Xid, err)
		}
		a.Close()
		b.Close()
	})
}

// TestPartitionExpires: the client learns nothing until the partition ends.
func TestPartitionExpires(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dial(t, s, raw.Options{Timeout: 6 * time.Second})
		mustCreate(t, c, "/e", jute.FlagEphemeral)
		s.Partition()
		time.Sleep(10 * time.Second)
		if s.Exists("/e") {
			t.Error("the ephemeral outlived its session")
		}
		read := make(chan error)
		go func() {
			_, err := c.ReadFrame()
			read <- err
		}()
		synctest.Wait()
		select {
		case err := <-read:
			t.Errorf("the client was told within the partition: %v", err)
		default:
		}
		s.Heal()
		if err := <-read; !errors.Is(err, io.EOF) {
			t.Errorf("after heal: got %v, want EOF", err)
		}
		c.Drop()
	})
}

func TestBlackHoleSwallowsHandshake(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		s.BlackHole(true)
		nc, err := s.Dial(t.Context(), "tcp", "memzk:2181")
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(time.Hour))
		opened := make(chan error)
		go func() {
			c, err := raw.Open(nc)
			if err == nil {
				c.Close()
			}
			opened <- err
		}()
		time.Sleep(30 * time.Second)
		select {
		case err := <-opened:
			t.Errorf("the handshake ended in a black hole: %v", err)
		default:
		}
		s.BlackHole(false)
		if err := <-opened; err != nil {
			t.Errorf("after the black hole: %v", err)
		}
	})
}

func TestPauseExpiresOnResume(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		short, long := dial(t, s, raw.Options{Timeout: 4 * time.Second}), dial(t, s, raw.Options{Timeout: 40 * time.Second})
		s.Pause()
		time.Sleep(20 * time.Second)
		if got, want := len(s.SessionIDs()), 2; got != want {
			t.Errorf("sessions of a paused server: got %d, want %d", got, want)
		}
		s.Resume()
		if got, want := len(s.SessionIDs()), 1; got != want {
			t.Errorf("sessions after resume: got %d, want %d", got, want)
		}
		mustCreate(t, long, "/x", 0)
		long.Close()
		short.Drop()
	})
}

func TestStopAndStartKeepSessions(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dial(t, s, raw.Options{Timeout: 4 * time.Second})
		mustCreate(t, c, "/e", jute.FlagEphemeral)
		s.Stop()
		c.Drop()
		if _, err := s.Dial(t.Context(), "tcp", "memzk:2181"); err == nil {
			t.Error("a stopped server accepts connections")
		}
		time.Sleep(time.Minute)
		s.Start()
		time.Sleep(3 * time.Second)
		again := raw.Options{SessionID: c.Session.SessionID, Password: c.Session.Password, Timeout: 4 * time.Second}
		c = dial(t, s, again)
		if !s.Exists("/e") {
			t.Error("the session did not get its whole timeout again")
		}
		zxid := s.Zxid()
		s.Wipe()
		again.LastZxidSeen = zxid
		nc, err := s.Dial(t.Context(), "tcp", "memzk:2181")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Open(nc, again); !errors.Is(err, io.EOF) {
			t.Errorf("an empty server and a client that has seen more: got %v, want EOF", err)
		}
		c.Drop()
	})
}

func TestLaggingView(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		slow, quick := dialAddr(t, s, "slow:2181"), dialAddr(t, s, "quick:2181")
		mustCreate(t, quick, "/x", 0)
		s.Lag("slow:2181")
		if _, _, err := quick.Set("/x", []byte("new"), -1); err != nil {
			t.Fatal(err)
		}
		if data, _, _, _ := slow.Get("/x", true); string(data) != "x" {
			t.Errorf("a view that lags: got %q, want %q", data, "x")
		}
		nc, err := s.Dial(t.Context(), "tcp", "slow:2181")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Open(nc, raw.Options{LastZxidSeen: quick.Zxid}); !errors.Is(err, io.EOF) {
			t.Errorf("a view that lags and a client that has seen more: got %v, want EOF", err)
		}
		if _, err := slow.Call(jute.OpSync, raw.Body("/")); err != nil {
			t.Fatal(err)
		}
		if got := slow.TakeEvents(); len(got) != 1 || got[0].Type != jute.EventDataChanged {
			t.Errorf("events that the sync brought: got %v", got)
		}
		if data, _, _, _ := slow.Get("/x", false); string(data) != "new" {
			t.Errorf("after a sync: got %q, want %q", data, "new")
		}
		mustCreate(t, quick, "/y", 0)
		if _, _, code, _ := slow.Get("/y", false); code != jute.ErrCodeNoNode {
			t.Errorf("lagging again: code %d, want %d", code, jute.ErrCodeNoNode)
		}
		if code, _ := slow.Create("/y", nil, 0); code != jute.ErrCodeNodeExists {
			t.Errorf("a write is judged by the truth: code %d, want %d", code, jute.ErrCodeNodeExists)
		}
		s.CatchUp("slow:2181")
		mustCreate(t, quick, "/z", 0)
		if _, _, code, _ := slow.Get("/z", false); code != jute.ErrCodeOK {
			t.Errorf("after catching up: code %d, want 0", code)
		}
		slow.Close()
		quick.Close()
	})
}

func TestRefuseDialAndDrop(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		c := dialAddr(t, s, "a:2181")
		s.RefuseDial("a:2181")
		s.DropConnections("b:2181")
		mustCreate(t, c, "/x", 0)
		s.DropConnections("a:2181")
		if _, err := c.ReadFrame(); err == nil {
			t.Error("a dropped connection answers")
		}
		if _, err := s.Dial(t.Context(), "tcp", "a:2181"); err == nil {
			t.Error("a refused address accepts")
		} else if _, ok := errors.AsType[*net.OpError](err); !ok {
			t.Errorf("refused: got %T, want *net.OpError", err)
		}
		s.ClearFaults()
		dialAddr(t, s, "a:2181").Close()
		c.Drop()
	})
}

func TestReadDeadlineWorksInVirtualTime(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *Server) {
		t.Helper()
		nc, err := s.Dial(t.Context(), "tcp", "memzk:2181")
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(5 * time.Minute))
		began := time.Now()
		if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
		}
		if got, want := time.Since(began), 5*time.Minute; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
		_ = nc.Close()
	})
}
