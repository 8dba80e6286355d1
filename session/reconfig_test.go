package session

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

func TestReconfig_ParsesMembers(t *testing.T) {
	t.Parallel()
	got := parseMembers(`server.1=zk1:2888:3888:participant;0.0.0.0:2181
server.2=zk2:2888:3888:participant;2182
server.3=10.0.0.3:2888:3888|10.0.1.3:2889:3889:observer;10.0.0.9:2183
server.4=[2001:db8::1]:2888:3888:participant;[::]:2181
server.5=old:2888:3888:participant
server.6=zk6:2888:3888;99999
server.7=zk2:2888:3888:participant;2182
version=100000000
`)
	want := []string{"10.0.0.9:2183", "[2001:db8::1]:2181", "zk1:2181", "zk2:2182"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A client that knows one server learns the others, and follows servers that go and
// come. A new process finds them although the server in its settings is gone.
func TestReconfig_ServersAreLearned(t *testing.T) {
	t.Parallel()
	sum := sha1.Sum([]byte("super:secret"))
	e := zktest.StartEnsemble(t, 3, zktest.Options{
		Reconfig: true, JVMFlags: []string{"-Dzookeeper.DigestAuthenticationProvider.superDigest=" + "super:" + base64.StdEncoding.EncodeToString(sum[:])},
	})
	dir := t.TempDir()
	cfg := Config{Servers: []string{e.Servers[0].Addr()}, Timeout: 10 * time.Second, FollowReconfig: true, StateDir: dir}
	anybody, _ := manageReal(t, Config{Servers: cfg.Servers})
	if _, err := realSession(t, anybody).Reconfig(soon(t), Reconfiguration{Leave: []string{"3"}}); !errors.Is(err, ErrNoAuth) {
		t.Errorf("anybody changes the servers: %v", err)
	}
	cfg.Auth = []Auth{{Scheme: "digest", Data: []byte("super:secret")}}
	m, stop := manageReal(t, cfg)
	s := realSession(t, m)
	knows := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		// 10 ms between two looks: what was learned has no event.
		for limit := soon(t); !slices.Equal(m.cfg.learned.get(), want); time.Sleep(10 * time.Millisecond) {
			if limit.Err() != nil {
				t.Fatalf("it knows %v, not %v", m.cfg.learned.get(), want)
			}
		}
	}
	knows(e.Addrs()...)
	reconfigure := func(change Reconfiguration, want error) string {
		t.Helper()
		text, err := s.Reconfig(soon(t), change)
		for ActionFor(err) == Retry { // the ensemble may elect a new leader
			text, err = s.Reconfig(soon(t), change)
		}
		if !errors.Is(err, want) {
			t.Fatalf("%+v: got %v, want %v", change, err, want)
		}
		return text
	}
	text := reconfigure(Reconfiguration{Leave: []string{"3"}}, nil)
	if strings.Contains(text, "server.3=") || !strings.Contains(text, "server.2=") || !strings.Contains(text, "version=") {
		t.Errorf("without server 3: %q", text)
	}
	knows(e.Addrs()[:2]...)
	reconfigure(Reconfiguration{Join: []string{"nothing"}}, ErrBadArguments)
	reconfigure(Reconfiguration{Leave: []string{"2"}, From: 1}, ErrBadVersion)
	reconfigure(Reconfiguration{Members: []string{e.Servers[0].Member(), e.Servers[1].Member(), e.Servers[2].Member()}}, nil)
	knows(e.Addrs()...)
	e.Servers[0].Kill(t)
	for limit := soon(t); s.Server() == e.Servers[0].Addr(); {
		changed := s.Changed()
		if s.Server() != e.Servers[0].Addr() {
			break
		}
		select {
		case <-changed:
		case <-limit.Done():
			t.Fatalf("no server that was learned is used: %v", s.lastError())
		}
	}
	m.HandOver()
	stop()
	next, _ := manageReal(t, cfg)
	if again := realSession(t, next); again.ID() != s.ID() {
		t.Errorf("session %x goes on as %x", s.ID(), again.ID())
	}
	// What was learned for other servers does not count, nor what cannot be read.
	other := cfg
	other.Servers = []string{e.Servers[1].Addr()}
	for _, damage := range []string{"", "{", `{"servers":["a:b:c"]}`} {
		if damage != "" {
			if err := os.WriteFile(filepath.Join(dir, serversName), []byte(damage), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := New(other)
		if err != nil {
			t.Fatal(err)
		}
		m.store = &stateStore{dir: dir}
		if err := m.loadServers(); (err != nil) != (damage != "") || len(m.cfg.learned.get()) > 0 {
			t.Errorf("%q: %v, %v", damage, err, m.cfg.learned.get())
		}
	}
}

// A server without reconfiguration says so.
func TestReconfig_Disabled(t *testing.T) {
	t.Parallel()
	m, _ := manageReal(t, Config{Servers: []string{zktest.Shared(t).Addr()}})
	_, err := realSession(t, m).Reconfig(soon(t), Reconfiguration{Leave: []string{"9"}})
	if !errors.Is(err, ErrReconfigDisabled) || ActionFor(err) != GiveUp {
		t.Error(err)
	}
}
