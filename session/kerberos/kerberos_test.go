package kerberos

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/session"
)

func dial(t *testing.T, server string, cfg Config) (*session.Session, error) {
	t.Helper()
	return dialWithin(t, time.Minute, server, cfg)
}

func dialWithin(t *testing.T, limit time.Duration, server string, cfg Config) (*session.Session, error) {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, err := session.Dial(ctx, session.Config{Servers: []string{server}, Timeout: 10 * time.Second, SASL: m})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// A real ZooKeeper with a real KDC takes the identity of a key table and of a
// credential cache, on each connection.
func TestKerberos_RealServer(t *testing.T) {
	t.Parallel()
	kdc := zktest.StartKDC(t)
	keytab := kdc.Principal(t, "zkagent/host1")
	server := zktest.Start(t, kdc.ServerOptions(t, "127.0.0.1", zktest.Options{}))
	proxy := zktest.NewProxy(t, server.Addr())
	principal := "zkagent/host1@" + zktest.Realm
	cfg := Config{Principal: principal, Keytab: keytab, Conf: kdc.Conf()}
	s, err := dial(t, proxy.Addr(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// ZooKeeper names a client by its principal, whole, unless told otherwise.
	only := session.ACL{Perms: session.PermAll, Scheme: "sasl", ID: principal}
	if _, _, err := s.Create(t.Context(), "/secret", []byte("v"), session.Persistent, only); err != nil {
		t.Fatal(err)
	}
	proxy.DropConnections()
	if data, _, err := s.Get(t.Context(), "/secret"); err != nil || string(data) != "v" {
		t.Errorf("over the next connection: %q, %v", data, err)
	}
	cached, err := dial(t, proxy.Addr(), Config{CredentialCache: kdc.Cache(t, principal, keytab), Conf: kdc.Conf()})
	if err != nil {
		t.Fatal(err)
	}
	if data, _, err := cached.Get(t.Context(), "/secret"); err != nil || string(data) != "v" {
		t.Errorf("with a credential cache: %q, %v", data, err)
	}
	// A ticket at hand outlives the KDC.
	kdc.Stop()
	proxy.DropConnections()
	if data, _, err := s.Get(t.Context(), "/secret"); err != nil || string(data) != "v" {
		t.Errorf("without a KDC: %q, %v", data, err)
	}
	if _, err := dialWithin(t, 2*time.Second, proxy.Addr(), cfg); err == nil || !strings.Contains(err.Error(), "no KDC answers") {
		t.Errorf("a new client without a KDC: %v", err)
	}
	kdc.Start(t)
	old := keytab + ".old"
	if data, err := os.ReadFile(keytab); err != nil || os.WriteFile(old, data, 0o600) != nil {
		t.Fatal(err)
	}
	kdc.Principal(t, "zkagent/host1") // a new key
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Principal: principal, Keytab: old, Conf: kdc.Conf()}, "does not have the present key of zkagent/host1"},
		{Config{Principal: "nobody@" + zktest.Realm, Keytab: old, Conf: kdc.Conf()}, "does not"},
		{Config{Principal: principal, Keytab: "/nonexistent", Conf: kdc.Conf()}, "read key table /nonexistent"},
		{Config{CredentialCache: "/nonexistent", Conf: kdc.Conf()}, "read credential cache /nonexistent"},
		{Config{Principal: principal, Keytab: keytab, Conf: "/nonexistent"}, "read /nonexistent"},
		{Config{CredentialCache: kdc.Cache(t, "fresh@"+zktest.Realm, kdc.Principal(t, "fresh")), Service: "hdfs", Conf: kdc.Conf()}, "does not know the server's principal hdfs/127.0.0.1"},
	} {
		_, err := dial(t, proxy.Addr(), c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "GSSAPI") {
			t.Errorf("%+v: got %v, want %q", c.cfg, err, c.want)
		}
	}
}

// A ticket is asked for anew before it ends.
func TestTicket_Stale(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := &ticket{began: now, end: now.Add(time.Hour)}
	for after, want := range map[time.Duration]bool{0: false, 47 * time.Minute: false, 49 * time.Minute: true, 2 * time.Hour: true} {
		if got := k.stale(now.Add(after)); got != want {
			t.Errorf("after %v: %v", after, got)
		}
	}
	if k.valid(now.Add(61*time.Minute)) || !k.valid(now.Add(59*time.Minute)) {
		t.Error("the end is not kept")
	}
	if _, err := (&Mechanism{tickets: map[string]*ticket{}}).Begin("h"); err == nil {
		t.Error("an exchange without a ticket")
	}
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Keytab: "k"}, {Keytab: "k", CredentialCache: "c", Principal: "p"}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}
