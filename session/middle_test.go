package session

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// middle is a listener that somebody on the way controls.
type middle struct {
	net.Listener
	serve atomic.Pointer[func(net.Conn)] // handles one connection
}

func newMiddle(t *testing.T) *middle {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve := *m.serve.Load()
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return m
}

func (m *middle) is(serve func(net.Conn)) { m.serve.Store(&serve) }

// splice copies between a client and a server in memory until one of them ends. change
// sees what the server sends.
func splice(srv *memzk.Server, client net.Conn, change func([]byte)) {
	server, err := srv.Dial(context.Background(), "tcp", "")
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	buf := make([]byte, 4096)
	for {
		n, err := server.Read(buf)
		change(buf[:n])
		if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// overheard hands on to a writer what is read from a connection.
type overheard struct {
	net.Conn
	to io.Writer
}

func (o overheard) Read(p []byte) (int, error) {
	n, err := o.Conn.Read(p)
	_, _ = o.to.Write(p[:n])
	return n, err
}

// issue returns a certificate for a name that ca has signed.
func issue(t *testing.T, ca *tls.Certificate, name string, valid time.Duration) tls.Certificate {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid)}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Somebody takes over the address of a server in the middle of a session. He cannot show
// the server's certificate. So he gets no word of the session, and the session goes on
// when the server is back.
func TestMiddle_TLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, pool := zktest.Certificate(t, filepath.Join(dir, "good.pem"), "zk")
	other, _ := zktest.Certificate(t, filepath.Join(dir, "other.pem"), "zk")
	speak := func(c *tls.Config) func(net.Conn) net.Conn {
		return func(conn net.Conn) net.Conn { return tls.Server(conn, c) }
	}
	plain := func(answer []byte) func(net.Conn) net.Conn {
		return func(conn net.Conn) net.Conn {
			_, _ = conn.Write(answer)
			return conn
		}
	}
	hello := packet(jute.ConnectResponse{Timeout: 20_000, SessionID: 1, Password: make([]byte, 16)})
	for name, c := range map[string]struct {
		with   func(net.Conn) net.Conn
		expect func(error) bool
	}{
		"another CA":       {with: speak(&tls.Config{Certificates: []tls.Certificate{other}}), expect: isA[x509.UnknownAuthorityError]},
		"another host":     {with: speak(&tls.Config{Certificates: []tls.Certificate{issue(t, &good, "evil.example", time.Hour)}}), expect: isA[x509.HostnameError]},
		"expired":          {with: speak(&tls.Config{Certificates: []tls.Certificate{issue(t, &good, "localhost", -time.Hour)}}), expect: isA[x509.CertificateInvalidError]},
		"no certificate":   {with: speak(&tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }}), expect: isA[*net.OpError]},
		"old version":      {with: speak(&tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}), expect: isA[*net.OpError]},
		"plain, at once":   {with: plain(hello), expect: isA[tls.RecordHeaderError]},
		"plain, and waits": {with: plain(nil), expect: func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		"text":             {with: plain([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), expect: isA[tls.RecordHeaderError]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := memzk.New(memzk.Options{TickTime: time.Second})
			t.Cleanup(srv.Close)
			m := newMiddle(t)
			honest := func(conn net.Conn) {
				splice(srv, tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{good}}), func([]byte) {})
			}
			m.is(honest)
			_, port, _ := net.SplitHostPort(m.Addr().String())
			cfg := Config{
				Servers: []string{net.JoinHostPort("localhost", port)}, Timeout: 40 * time.Second, Auth: []Auth{{Scheme: "digest", Data: []byte("me:s3cret")}},
				TLS: func() (*tls.Config, error) { return &tls.Config{RootCAs: pool}, nil },
			}
			mgr, stop := manage(t, cfg)
			defer stop()
			s, err := mgr.Session(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Create(soon(t), "/e", nil, Ephemeral); err != nil {
				t.Fatal(err)
			}
			heard := make(chan []byte, 100)
			m.is(func(conn net.Conn) {
				var raw, plain bytes.Buffer
				_, _ = io.Copy(&plain, c.with(overheard{conn, &raw}))
				heard <- append(raw.Bytes(), plain.Bytes()...)
			})
			s.dropForTest()
			for range 2 {
				select {
				case got := <-heard:
					if !bytes.HasPrefix(got, []byte{22, 3}) || bytes.Contains(got, s.password) || bytes.Contains(got, []byte("s3cret")) {
						t.Errorf("he heard %q", got)
					}
				case <-soon(t).Done():
					t.Fatal("nobody dials")
				}
			}
			if s.State() != Suspended {
				t.Errorf("the session is %s", s.State())
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, _, err = s.Get(ctx, "/e")
			cancel()
			if !errors.Is(err, ErrNoServer) || ActionFor(err) != Retry || !c.expect(err) {
				t.Errorf("got %#v: %v", errors.Unwrap(err), err)
			}
			m.is(honest)
			if _, st, err := s.Get(soon(t), "/e"); err != nil || st.EphemeralOwner != s.ID() {
				t.Errorf("after he is gone: %+v, %v", st, err)
			}
		})
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// A server that does not know the password, or asks for a weaker exchange, is refused:
// it gets nothing but the exchange, on a new session and on one that exists. The session
// goes on when the right server is back.
func TestMiddle_DigestMD5(t *testing.T) {
	const challenge, proof = 2, 3 // frames of the server
	for name, c := range map[string]struct {
		frame int
		lie   func(token, sent string) string // nil: no token
		fatal bool                            // for a new session
	}{
		"wrong rspauth":    {proof, func(token, _ string) string { return "rspauth=" + strings.Repeat("0", len(token)-len("rspauth=")) }, true},
		"empty rspauth":    {proof, func(string, string) string { return "rspauth=" }, true},
		"no proof":         {proof, func(string, string) string { return "" }, true},
		"short rspauth":    {proof, func(token, _ string) string { return token[:len(token)-1] }, true},
		"reflected":        {proof, func(_, sent string) string { return "rspauth=" + sent[strings.Index(sent, "response=")+9:][:32] }, true},
		"asks again":       {proof, func(string, string) string { return `realm="r",nonce="n",charset=utf-8,algorithm=md5-sess` }, true},
		"no SASL":          {challenge, nil, true},
		"done at once":     {challenge, func(string, string) string { return "rspauth=00" }, false},
		"other algorithm":  {challenge, func(string, string) string { return `realm="r",nonce="n",charset=utf-8,algorithm=md5` }, false},
		"other protection": {challenge, func(string, string) string { return `realm="r",nonce="n",qop="auth-int",algorithm=md5-sess` }, false},
		"giant challenge": {challenge, func(string, string) string {
			return `nonce="` + strings.Repeat("x", maxSASLToken) + `",algorithm=md5-sess`
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleWith(t, saslServer, func(t *testing.T, srv *memzk.Server) {
				var lies atomic.Bool
				var mu sync.Mutex
				ops := map[int32]int{} // that a lying server got
				cfg := memConfig(srv)
				cfg.SASL = DigestMD5("agent", "secret")
				cfg.Auth = []Auth{{Scheme: "digest", Data: []byte("me:s3cret")}}
				dial := cfg.Dial
				cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					if err != nil || !lies.Load() {
						return conn, err
					}
					f := &forger{Conn: conn, at: c.frame, lie: c.lie, got: func(op int32) {
						mu.Lock()
						defer mu.Unlock()
						ops[op]++
					}}
					return f, nil
				}
				m, stop := manage(t, cfg)
				defer stop()
				s := mustSession(t, m)
				lies.Store(true)
				s.dropForTest()
				time.Sleep(4 * time.Second)
				if s.State() != Suspended {
					t.Errorf("the session is %s", s.State())
				}
				lies.Store(false)
				if _, _, err := s.Exists(t.Context(), "/"); err != nil {
					t.Errorf("after he is gone: %v", err)
				}
				lies.Store(true)
				srv.ExpireSession(s.ID())
				<-s.Done()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := m.Session(ctx)
				cancel()
				if !strings.Contains(fmt.Sprint(err), "SASL DIGEST-MD5") || errors.Is(err, ErrAuthFailed) != c.fatal || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v", err)
				}
				if c.fatal && ActionFor(err) != GiveUp {
					t.Errorf("action %d for %v", ActionFor(err), err)
				}
				lies.Store(false)
				mustSession(t, m)
				mu.Lock()
				defer mu.Unlock()
				if n := ops[jute.OpSASL]; n == 0 || len(ops) != 1 {
					t.Errorf("he got requests %v", ops)
				}
			})
		})
	}
}

// forger is a connection to a server, one of whose frames somebody replaces.
type forger struct {
	net.Conn
	at   int
	lie  func(token, sent string) string
	got  func(op int32)
	left []byte
	read int

	mu    sync.Mutex // guards what follows
	asked bool       // the ConnectRequest
	sent  string     // the last token
}

func (f *forger) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for b := p; len(b) >= 12; b = b[4+binary.BigEndian.Uint32(b):] {
		if f.asked {
			f.got(int32(binary.BigEndian.Uint32(b[8:])))
			f.sent = string(b[12:])
		}
		f.asked = true
	}
	return f.Conn.Write(p)
}

func (f *forger) Read(p []byte) (int, error) {
	if len(f.left) == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(f.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(f.Conn, body); err != nil {
			return 0, err
		}
		if f.read++; f.read == f.at {
			body = f.forge(body)
		}
		f.left = withLength(body)
	}
	n := copy(p, f.left)
	f.left = f.left[n:]
	return n, nil
}

// forge returns another reply with the same header.
func (f *forger) forge(body []byte) []byte {
	token := jute.NewDecoder(body[jute.ReplyHeaderSize:]).Buffer()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lie == nil {
		return append(body[:jute.ReplyHeaderSize:jute.ReplyHeaderSize], 0xff, 0xff, 0xff, 0xff)
	}
	lie := f.lie(string(token), f.sent)
	return append(binary.BigEndian.AppendUint32(body[:jute.ReplyHeaderSize:jute.ReplyHeaderSize], uint32(len(lie))), lie...)
}
