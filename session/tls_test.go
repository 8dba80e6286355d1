package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

func TestReal_TLSWithHostNames(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server.pem")
	pair, pool := zktest.Certificate(t, file, "zk")
	srv := zktest.Start(t, zktest.Options{Secure: true, Settings: []string{
		"ssl.keyStore.location=" + file, "ssl.trustStore.location=" + file, "ssl.clientAuth=none",
	}})
	_, port, err := net.SplitHostPort(srv.SecureAddr())
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	cfg := realConfig(net.JoinHostPort("localhost", port))
	cfg.Timeout = 20 * time.Second
	cfg.TLS = func() (*tls.Config, error) {
		asked.Add(1)
		return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
	}
	s := dialReal(t, cfg)
	if acl := createdWith(t, s, "/mine"); !slices.Equal(acl, OpenACL()) { // the server has not asked for the certificate
		t.Errorf("got %v, want %v", acl, OpenACL())
	}
	if _, _, err := s.Create(soon(t), "/secure", make([]byte, 100_000), Ephemeral); err != nil {
		t.Fatal(err)
	}
	changed := s.Changed()
	s.dropForTest()
	await(t, "loss", changed)
	if data, _, err := s.Get(soon(t), "/secure"); err != nil || len(data) != 100_000 {
		t.Fatal(len(data), err)
	}
	if asked.Load() < 2 {
		t.Error("certificates were not read again at the second dial")
	}
	// An address is not what the certificate is for.
	ip := cfg
	ip.Servers = []string{srv.SecureAddr()}
	var dials atomic.Int64
	again := make(chan struct{})
	ip.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 2 {
			close(again) // the first has failed
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	m, _ := manageReal(t, ip)
	await(t, "second attempt", again)
	if last := m.Status().LastError; !strings.Contains(last, "127.0.0.1") {
		t.Errorf("last error %q", last)
	}
	if m.State() != Connecting {
		t.Error("connected to a server that could not be verified")
	}
}

// createdWith returns the ACL of a znode that is created without one.
func createdWith(t *testing.T, s *Session, path string) []ACL {
	t.Helper()
	if _, _, err := s.Create(soon(t), path, nil, Persistent); err != nil {
		t.Fatal(err)
	}
	acl, _, err := s.GetACL(soon(t), path)
	if err != nil {
		t.Fatal(err)
	}
	return acl
}

// A refused certificate is not a dead server: Dial returns at once, on either side. One
// that the server asks for is an identity.
func TestReal_TLSRefused(t *testing.T) {
	testhelp.OnlyAll(t, "a server of its own")
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server.pem")
	pair, pool := zktest.Certificate(t, file, "zk")
	stranger, strangers := zktest.Certificate(t, filepath.Join(t.TempDir(), "other.pem"), "stranger")
	srv := zktest.Start(t, zktest.Options{Secure: true, Settings: []string{
		"ssl.keyStore.location=" + file, "ssl.trustStore.location=" + file + ".cert.pem", "ssl.clientAuth=need",
	}})
	for name, c := range map[string]*tls.Config{
		"the server's": {RootCAs: strangers, Certificates: []tls.Certificate{pair}},
		"its name":     {RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: "elsewhere"},
		"ours":         {RootCAs: pool, Certificates: []tls.Certificate{stranger}},
		"none":         {RootCAs: pool},
		"":             {RootCAs: pool, Certificates: []tls.Certificate{pair}},
	} {
		cfg := realConfig(strings.Replace(srv.SecureAddr(), "127.0.0.1", "localhost", 1))
		cfg.TLS = func() (*tls.Config, error) { return c, nil }
		s, err := Dial(soon(t), cfg)
		if err == nil {
			if acl, want := createdWith(t, s, "/mine"), []ACL{{PermRead, "world", "anyone"}, {PermAll, "x509", "CN=zk"}}; !slices.Equal(acl, want) {
				t.Errorf("got %v, want %v", acl, want)
			}
			_ = s.Close()
		}
		if errors.Is(err, ErrTLS) != (name != "") || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s certificate is refused: %v", name, err)
		}
	}
}

// With TLS 1.3 a client learns in its first read that its certificate is refused.
func TestTLS_RefusedInTheFirstRead(t *testing.T) {
	t.Parallel()
	pair, pool := zktest.Certificate(t, filepath.Join(t.TempDir(), "server.pem"), "zk")
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13,
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	defer func() { <-done }()
	defer l.Close()
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
	}()
	good := realConfig(strings.Replace(l.Addr().String(), "127.0.0.1", "localhost", 1))
	good.TLS = func() (*tls.Config, error) { return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, nil }
	if _, err := Dial(soon(t), good); !errors.Is(err, ErrTLS) || errors.Is(err, context.DeadlineExceeded) || ActionFor(err) != GiveUp {
		t.Errorf("got %v, action %d", err, ActionFor(err))
	}
	if err := fmt.Errorf("%w: %w: %w", ErrSuspended, ErrNoServer, ErrTLS); ActionFor(err) != Retry { // another server may accept it
		t.Errorf("action %d for %v", ActionFor(err), err)
	}
	away := good // one of the servers is only down: it may be the one that accepts the certificate
	away.Servers = append(away.Servers, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := Dial(ctx, away); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a server that is down: %v", err)
	}
}

// dropForTest ends the present connection.
func (s *Session) dropForTest() {
	s.mu.Lock()
	w := s.cur
	s.mu.Unlock()
	if w != nil {
		w.fail(net.ErrClosed)
	}
}
