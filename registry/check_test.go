package registry

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// try runs a check once.
func try(t *testing.T, c CheckConfig) (string, error) {
	t.Helper()
	check, err := NewCheck(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return check.Run(ctx)
}

func web() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "status: green host=%s method=%s x=%s", r.Host, r.Method, r.Header.Get("X-Token"))
	})
	mux.HandleFunc("/500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/500", http.StatusFound) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 4096)); err != nil {
				return
			}
		}
	})
	return mux
}

func TestCheck_HTTP(t *testing.T) {
	srv := httptest.NewServer(web())
	defer srv.Close()
	tests := []struct {
		name string
		c    CheckConfig
		ok   bool
	}{
		{"good", CheckConfig{URL: "/ok"}, true},
		{"status", CheckConfig{URL: "/500"}, false},
		{"status wanted", CheckConfig{URL: "/500", Status: "200, 500-502"}, true},
		{"redirect is good by default", CheckConfig{URL: "/moved"}, true},
		{"redirect followed", CheckConfig{URL: "/moved", Follow: true}, false},
		{"body", CheckConfig{URL: "/ok", Body: "status: (green|yellow)"}, true},
		{"other body", CheckConfig{URL: "/ok", Body: "^red$"}, false},
		{"headers and method", CheckConfig{URL: "/ok", Method: "POST", Headers: map[string]string{"x-token": "t", "host": "a.example.org"}, Body: "host=a.example.org method=POST x=t"}, true},
		{"endless body", CheckConfig{URL: "/endless"}, true},
	}
	for _, tt := range tests {
		tt.c.Kind, tt.c.URL = CheckHTTP, srv.URL+tt.c.URL
		output, err := try(t, tt.c)
		if (err == nil) != tt.ok || len(output) > maxOutput+100 {
			t.Errorf("%s: %v; %d bytes of output", tt.name, err, len(output))
		}
	}
	srv.Close()
	if _, err := try(t, CheckConfig{Kind: CheckHTTP, URL: srv.URL + "/?token=secret"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("of a closed server: %v", err)
	}
}

func TestCheck_HTTPS(t *testing.T) {
	srv := httptest.NewTLSServer(web())
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		tls  *TLSConfig
		ok   bool
	}{
		{"unknown authority", nil, false},
		{"known authority", &TLSConfig{CAFile: ca}, true},
		{"other name", &TLSConfig{CAFile: ca, ServerName: "other.test"}, false},
		{"a name of the certificate", &TLSConfig{CAFile: ca, ServerName: "example.com"}, true},
		{"not verified", &TLSConfig{Insecure: true}, true},
		{"missing file", &TLSConfig{CAFile: ca + "x"}, false},
		{"not a certificate", &TLSConfig{CAFile: os.Args[0]}, false},
	}
	for _, tt := range tests {
		if _, err := try(t, CheckConfig{Kind: CheckHTTP, URL: srv.URL + "/ok", TLS: tt.tls}); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestCheck_TCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, CheckConfig{Kind: CheckTCP, Address: l.Addr().String()}); err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := try(t, CheckConfig{Kind: CheckTCP, Address: l.Addr().String()}); err == nil {
		t.Error("a closed port was found good")
	}
}

// healthServer answers the standard health service.
func healthServer(tlsConfig bool) *httptest.Server {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		if r.Method != http.MethodPost || r.URL.Path != "/grpc.health.v1.Health/Check" || r.ProtoMajor != 2 || len(body) < 5 {
			w.Header().Set("Grpc-Status", "12")
			return
		}
		switch service := strings.TrimLeft(string(body[5:]), "\n\x00\x01\x02\x03\x04\x05\x06\x07\x08"); service {
		case "":
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, 1})
		case "down":
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, 2})
		case "junk":
			_, _ = w.Write([]byte{0, 0, 0, 0, 9, 8, 1})
		case "more": // fields of a later version
			_, _ = w.Write([]byte{0, 0, 0, 0, 7, 0x12, 1, 'x', 0x18, 5, 8, 1})
		default:
			w.Header().Set("Grpc-Status", "5")
			w.Header().Set("Grpc-Message", "unknown%20service")
			return
		}
		w.Header().Set("Grpc-Status", "0")
	})
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	if tlsConfig {
		srv.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		srv.StartTLS()
		return srv
	}
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	return srv
}

func TestCheck_GRPC(t *testing.T) {
	srv := healthServer(false)
	defer srv.Close()
	address := srv.Listener.Addr().String()
	for service, ok := range map[string]bool{"": true, "more": true, "down": false, "junk": false, "nothing": false} {
		output, err := try(t, CheckConfig{Kind: CheckGRPC, Address: address, Service: service})
		if (err == nil) != ok {
			t.Errorf("%q: %q, %v", service, output, err)
		}
		if service == "nothing" && (err == nil || !strings.Contains(err.Error(), "unknown service")) {
			t.Errorf("got %v", err)
		}
	}
	secure := healthServer(true)
	defer secure.Close()
	if _, err := try(t, CheckConfig{Kind: CheckGRPC, Address: secure.Listener.Addr().String(), TLS: &TLSConfig{Insecure: true}}); err != nil {
		t.Error(err)
	}
	plain := httptest.NewServer(web())
	defer plain.Close()
	if _, err := try(t, CheckConfig{Kind: CheckGRPC, Address: plain.Listener.Addr().String()}); err == nil {
		t.Error("a server of HTTP/1 was found good")
	}
}

func FuzzParseHealth(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1})
	f.Add([]byte{0, 0, 0, 0, 7, 0x12, 1, 'x', 0x18, 5, 8, 1})
	f.Fuzz(func(_ *testing.T, frame []byte) { _, _ = parseHealth(frame) })
}

func TestCheck_Exec(t *testing.T) {
	tests := []struct {
		script string
		ok     bool
		output string
	}{
		{"echo fine; exit 0", true, "fine"},
		{"echo broken >&2; exit 2", false, "broken"},
		{"kill -9 $$", false, ""},
	}
	for _, tt := range tests {
		output, err := try(t, CheckConfig{Kind: CheckExec, Command: []string{"/bin/sh", "-c", tt.script}})
		if (err == nil) != tt.ok || strings.TrimSpace(output) != tt.output {
			t.Errorf("%s: %q, %v", tt.script, output, err)
		}
	}
	if _, err := try(t, CheckConfig{Kind: CheckExec, Command: []string{"/nothing/here"}}); err == nil {
		t.Error("a missing command was found good")
	}
	if output, _ := try(t, CheckConfig{Kind: CheckExec, Command: []string{"/bin/sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x"}}); len(output) != maxOutput {
		t.Errorf("%d bytes of output", len(output))
	}
}

// What a command started ends with its timeout, also what holds its output open.
func TestCheck_ExecTimeout(t *testing.T) {
	check, err := NewCheck(CheckConfig{Kind: CheckExec, Command: []string{"/bin/sh", "-c", "sleep 600 & sleep 600"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := check.Run(ctx); err == nil || !strings.Contains(err.Error(), "not done in time") {
		t.Errorf("got %v", err)
	}
}

func TestCheckConfig_Invalid(t *testing.T) {
	for _, c := range []CheckConfig{
		{},
		{Kind: "x"},
		{Kind: CheckHTTP},
		{Kind: CheckHTTP, URL: "ftp://a"},
		{Kind: CheckHTTP, URL: "http://a", Status: "2xx"},
		{Kind: CheckHTTP, URL: "http://a", Status: "300-200"},
		{Kind: CheckHTTP, URL: "http://a", Body: "("},
		{Kind: CheckTCP, Address: "a"},
		{Kind: CheckTCP, Address: ":80"},
		{Kind: CheckGRPC, Address: "a:0"},
		{Kind: CheckExec},
		{Kind: CheckTTL},
		{Kind: CheckTTL, TTL: time.Second, Name: "a b"},
		{Kind: CheckTTL, TTL: time.Second, Rise: -1},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

func startChecker(t *testing.T, c CheckConfig, run RunFunc) (*checker, func()) {
	t.Helper()
	k := newChecker("web", c, run, nil, func() {})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { k.run(ctx); close(done) }()
	return k, func() { cancel(); <-done }
}

func TestChecker_TTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, stop := startChecker(t, CheckConfig{Kind: CheckTTL, TTL: time.Minute}, nil)
		defer stop()
		if s := k.snapshot(); s.State != Unknown {
			t.Errorf("at the start: %+v", s)
		}
		for _, tt := range []struct {
			report Report
			want   Verdict
		}{{ReportPass, Passing}, {ReportFail, Critical}, {ReportWarn, Passing}} {
			if err := k.report(t.Context(), tt.report, "why\x1b[2J"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if s := k.snapshot(); s.State != tt.want || s.Output != "why[2J" || s.Warning != (tt.report == ReportWarn) {
				t.Errorf("%s: %+v", tt.report, s)
			}
		}
		time.Sleep(59 * time.Second)
		if s := k.snapshot(); s.State != Passing {
			t.Errorf("before the end: %+v", s)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := k.snapshot(); s.State != Critical || !strings.Contains(s.Output, "no report") {
			t.Errorf("after the end: %+v", s)
		}
		if err := k.report(t.Context(), "maybe", ""); err == nil {
			t.Error("a state that there is not was taken")
		}
	})
}

// A check that ignores its timeout fails, and no second one is started.
func TestChecker_CannotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, most, release := 0, 0, make(chan struct{})
		k, stop := startChecker(t, CheckConfig{Kind: CheckExec, Command: []string{"x"}}, func(context.Context, []string, int) (string, int, error) {
			running++
			most = max(most, running)
			<-release
			running--
			return "", 0, nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := k.snapshot(); s.State != Critical || most != 1 {
			t.Errorf("%d at the same time; %+v", most, s)
		}
		close(release)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := k.snapshot(); s.State != Passing || most != 1 {
			t.Errorf("%d at the same time; %+v", most, s)
		}
		stop()
	})
}

func TestChecker_Interval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		_, stop := startChecker(t, CheckConfig{Kind: CheckExec, Command: []string{"x"}, Interval: 10 * time.Second}, func(context.Context, []string, int) (string, int, error) {
			runs++
			return "", 0, nil
		})
		time.Sleep(1000 * time.Second)
		stop()
		if runs < 95 || runs > 106 {
			t.Errorf("%d runs in 100 intervals", runs)
		}
	})
}
