package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

// secureServer is a ZooKeeper that wants certificates on its TLS port, knows
// clients by them, enforces quotas, and refuses unknown clients.
func secureServer(t *testing.T) (plain, secure session.Config, certs *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	serverFile, clientFile := filepath.Join(dir, "server.pem"), filepath.Join(dir, "client.pem")
	_, pool := zktest.Certificate(t, serverFile, "zk")
	client, _ := zktest.Certificate(t, clientFile, "agent")
	srv := zktest.Start(t, zktest.Options{
		Secure: true, JVMFlags: []string{"-Dzookeeper.enforceQuota=true", "-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest,x509"},
		Settings: []string{
			"authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
			"ssl.keyStore.location=" + serverFile, "ssl.trustStore.location=" + clientFile + ".cert.pem", "ssl.clientAuth=need",
		},
	})
	_, port, err := net.SplitHostPort(srv.SecureAddr())
	if err != nil {
		t.Fatal(err)
	}
	secure = realConfig(net.JoinHostPort("localhost", port), "")
	secure.Timeout = 30 * time.Second
	secure.TLS = func() (*tls.Config, error) {
		return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12}, nil
	}
	plain = realConfig(srv.Addr(), "")
	plain.Timeout = 30 * time.Second
	return plain, secure, pool
}

func digest(user string) []session.Auth {
	return []session.Auth{{Scheme: "digest", Data: []byte(user + ":secret")}}
}

// A member that is registered over TLS with two identities belongs to these two alone.
// Everybody may read it.
func TestReal_SecuredRegistration(t *testing.T) { //nolint:tparallel // the subtests look at one group, one after the other.
	t.Parallel()
	plain, secure, pool := secureServer(t)
	ours := secure
	ours.Auth = digest("svc")
	s := dialReal(t, ours)
	r, stop := start(t, s, service("/services/web", FormatNerve, "a", 1))
	defer stop()
	wait(t, "registered", func() bool { return r.Status().Registered })
	for _, path := range []string{"/services", "/services/web", r.Status().Nodes[0]} {
		acl, _, err := s.GetACL(t.Context(), path)
		var text []string
		for _, a := range acl {
			text = append(text, session.FormatACL(a))
		}
		slices.Sort(text)
		if err != nil || len(text) != 3 || !strings.HasPrefix(text[0], "digest:svc:") || !strings.HasSuffix(text[0], ":cdrwa") || text[1] != "world:anyone:r" || text[2] != "x509:CN=agent:cdrwa" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	t.Run("a stranger reads and cannot write", func(t *testing.T) { strangers(t, plain, r.Status().Nodes[0]) })
	t.Run("a certificate alone is enough", func(t *testing.T) {
		byCert := dialReal(t, secure)
		other, stop := start(t, byCert, service("/services/web", FormatNerve, "b", 2))
		defer stop()
		wait(t, "registered", func() bool { return other.Status().Registered })
		drain(t, other)
	})
	t.Run("no certificate", func(t *testing.T) {
		none := ours
		none.TLS = func() (*tls.Config, error) { return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil }
		m := follow(t, none, GroupConfig{Name: "web", Path: "/services/web"})
		wait(t, "the reason", func() bool { return strings.Contains(m.Status().LastError, "certificate") })
	})
	t.Run("no authentication", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		unknown := dialReal(t, plain)
		if _, _, err := unknown.Get(ctx, "/services"); !errors.Is(err, session.ErrAuthRequired) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("quota", func(t *testing.T) { quotas(t, s) })
}

// strangers tries what others must not do.
func strangers(t *testing.T, cfg session.Config, node string) {
	cfg.Auth = digest("stranger")
	other := dialReal(t, cfg)
	ctx := t.Context()
	if _, _, err := other.Get(ctx, node); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"delete": other.Delete(ctx, node, -1),
		"set":    func() error { _, err := other.Set(ctx, node, nil, -1); return err }(),
		"join": func() error {
			_, _, err := other.Create(ctx, "/services/web/x_", nil, session.EphemeralSequential)
			return err
		}(),
		"acl": func() error { _, err := other.SetACL(ctx, node, session.OpenACL(), -1); return err }(),
	} {
		if !errors.Is(err, session.ErrNoAuth) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, stop := start(t, other, service("/services/web", FormatNerve, "intruder", 3))
	defer stop()
	wait(t, "the reason", func() bool { return strings.Contains(r.Status().Error, session.ErrNoAuth.Error()) })
	m := follow(t, cfg, GroupConfig{Name: "web", Path: "/services/web"})
	wait(t, "the member alone", m.shows(1))
}

// quotas registers members in a group that may have one.
func quotas(t *testing.T, s *session.Session) {
	ctx := t.Context()
	if err := s.CreateParents(ctx, "/limited/web/x"); err != nil {
		t.Fatal(err)
	}
	limits := "/zookeeper/quota/limited/web/"
	if err := s.CreateParents(ctx, limits+"x"); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"zookeeper_limits": "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2", "zookeeper_stats": "count=1,bytes=0"} {
		if _, _, err := s.Create(ctx, limits+name, []byte(data), session.Persistent); err != nil {
			t.Fatal(err)
		}
	}
	first, stop := start(t, s, service("/limited/web", FormatNerve, "a", 1))
	defer stop()
	wait(t, "the first", func() bool { return first.Status().Registered })
	second, stopSecond := start(t, s, service("/limited/web", FormatNerve, "b", 2))
	defer stopSecond()
	wait(t, "the reason of the second", func() bool { return strings.Contains(second.Status().Error, session.ErrQuota.Error()) })
	if second.Status().Registered || !first.Status().Registered {
		t.Error("the quota was not kept")
	}
}

// A pipe in the place of a file of a certificate is an error, and holds up no connection.
func TestTLSConfig_OpensNoPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []TLSConfig{{CAFile: pipe}, {CertFile: pipe, KeyFile: pipe}} {
		ended := make(chan error, 1)
		go func() {
			_, err := c.Client()
			ended <- err
		}()
		late := time.NewTimer(20 * time.Second)
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%+v: no error", c)
			}
		case <-late.C:
			t.Errorf("%+v: it does not end", c)
		}
		late.Stop()
	}
}
