package kerberos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/errorcode"
	"github.com/jcmturner/gokrb5/v8/iana/nametype"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

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

// Tickets are renewed in the background before they end; what fails is known while
// the old one lasts, and a reconnect does not need the KDC. LONG=1 takes tickets of
// 30 s, over two minutes.
func TestKerberos_RenewsInTheBackground(t *testing.T) {
	t.Parallel()
	long := os.Getenv("LONG") != ""
	life, renewals := 8*time.Second, 2
	if long {
		life, renewals = 30*time.Second, 5
	}
	kdc := zktest.StartKDC(t)
	keytab := kdc.Principal(t, "brief", "-maxlife", fmt.Sprintf("%.0fsec", life.Seconds()))
	server := zktest.Start(t, kdc.ServerOptions(t, "127.0.0.1", zktest.Options{}))
	proxy := zktest.NewProxy(t, server.Addr())
	m, err := New(Config{Principal: "brief@" + zktest.Realm, Keytab: keytab, Conf: kdc.Conf()})
	if err != nil {
		t.Fatal(err)
	}
	manager, err := session.New(session.Config{Servers: []string{proxy.Addr()}, Timeout: 10 * time.Second, SASL: m})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = manager.Run(ctx) })
	defer running.Wait()
	defer cancel()
	wait, end := context.WithTimeout(ctx, 5*time.Minute)
	defer end()
	s, err := manager.Session(wait)
	if err != nil {
		t.Fatal(err)
	}
	spn := m.serverPrincipal("127.0.0.1")
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			if s.Sleep(wait, 20*time.Millisecond) != nil {
				t.Fatalf("%s: did not happen: %v, %+v", what, context.Cause(s.Context()), manager.Status())
			}
		}
	}
	for n := range renewals {
		was := m.ticket(spn).end
		until(fmt.Sprintf("renewal %d", n), func() bool { return m.ticket(spn).end.After(was) })
		if long && !time.Now().Before(was) { // a busy machine may be late by more than a fifth of 8 s
			t.Errorf("renewal %d came when the ticket had ended", n)
		}
	}
	if s.Connection() != 1 || manager.Status().NotRenewed != "" {
		t.Errorf("%d connections, %q", s.Connection(), manager.Status().NotRenewed)
	}
	kdc.Stop()
	until("the failure is known", func() bool { return strings.Contains(manager.Status().NotRenewed, "no KDC answers") })
	kdc.Start(t)
	until("it is renewed again", func() bool { return manager.Status().NotRenewed == "" })
	proxy.DropConnections()
	if _, _, err := s.Exists(wait, "/"); err != nil {
		t.Error(err)
	}
}

// What a KDC refuses is said with what mends it. What another credential does not
// mend is no refusal of the identity.
func TestKerberos_WordsOfRefusals(t *testing.T) {
	t.Parallel()
	kdc := zktest.StartKDC(t)
	keytab := kdc.Principal(t, "web")
	for _, c := range []struct {
		code   int32
		want   string
		refuse bool
	}{
		{errorcode.KRB_AP_ERR_SKEW, "set them by NTP", false},
		{errorcode.KDC_ERR_C_PRINCIPAL_UNKNOWN, "does not know the principal web@", true},
		{errorcode.KDC_ERR_KEY_EXPIRED, "change it (kadmin: ktadd)", true},
		{errorcode.KDC_ERR_CLIENT_REVOKED, "locked the principal web@", true},
		{errorcode.KDC_ERR_ETYPE_NOSUPP, "AES is needed", true},
	} {
		conf := refusingKDC(t, c.code)
		m, err := New(Config{Principal: "web@" + zktest.Realm, Keytab: keytab, Conf: conf})
		if err != nil {
			t.Fatal(err)
		}
		err = m.Prepare("127.0.0.1")
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, session.ErrAuthFailed) != c.refuse {
			t.Errorf("code %d: got %v, want %q", c.code, err, c.want)
		}
	}
}

// refusingKDC answers every request by an error, and returns a krb5.conf that names
// it.
func refusingKDC(t *testing.T, code int32) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	refusal := messages.NewKRBError(types.NewPrincipalName(nametype.KRB_NT_SRV_INST, "krbtgt/"+zktest.Realm), zktest.Realm, code, "")
	body, err := refusal.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			size := make([]byte, 4)
			if _, err := io.ReadFull(c, size); err == nil {
				_, _ = io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size)))
				_, _ = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
			}
			_ = c.Close()
		}
	}()
	conf := filepath.Join(t.TempDir(), "krb5.conf")
	text := fmt.Sprintf("[libdefaults]\n  default_realm = %[1]s\n  udp_preference_limit = 1\n[realms]\n  %[1]s = {\n    kdc = %[2]s\n  }\n", zktest.Realm, l.Addr())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return conf
}

// A credential cache whose ticket has ended is named with what mends it.
func TestKerberos_CacheThatEnded(t *testing.T) {
	t.Parallel()
	kdc := zktest.StartKDC(t)
	keytab := kdc.Principal(t, "cron", "-maxlife", "1sec")
	cache := kdc.Cache(t, "cron@"+zktest.Realm, keytab)
	m, err := New(Config{CredentialCache: cache, Conf: kdc.Conf()})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		err := m.Prepare("127.0.0.1")
		if err != nil && strings.Contains(err.Error(), "ended at") && strings.Contains(err.Error(), "run kinit") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the ticket does not end: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks: a renewal has no event
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

// A file that another user has put in the place of one of ours, or that kinit is just
// writing, is an error: it holds up nothing, and ends no process.
func TestKerberos_ForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "krb5.conf")
	if err := os.WriteFile(conf, []byte("[libdefaults]\n default_realm = EXAMPLE.ORG\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	list := []Config{{Keytab: pipe, Principal: "p", Conf: conf}, {CredentialCache: pipe, Conf: conf}, {CredentialCache: "c", Conf: pipe}}
	for i, text := range []string{"", "\x05", "\x05\x04", "\x05\x04\x00\x0c\x00", "\x05\x02\x7f\xff\xff\xff", "\x05\x03\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff"} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		list = append(list, Config{Keytab: path, Principal: "p", Conf: conf}, Config{CredentialCache: path, Conf: conf})
	}
	for _, c := range list {
		m, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- m.Prepare("127.0.0.1") }()
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

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Keytab: "k"}, {Keytab: "k", CredentialCache: "c", Principal: "p"}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}
