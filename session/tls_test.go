package session

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

func TestReal_TLSWithHostNames(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server.pem")
	_, pool := zktest.Certificate(t, file, "zk")
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
		return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
	}
	s := dialReal(t, cfg)
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

// dropForTest ends the present connection.
func (s *Session) dropForTest() {
	s.mu.Lock()
	w := s.cur
	s.mu.Unlock()
	if w != nil {
		w.fail(net.ErrClosed)
	}
}
