package session

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

// certificate makes a self-signed certificate for localhost, which is not valid for
// any address, and writes it with its key to a file.
func certificate(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "zk"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := os.WriteFile(file, both, 0o600); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(both)
	return pool
}

func TestReal_TLSWithHostNames(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server.pem")
	pool := certificate(t, file)
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
