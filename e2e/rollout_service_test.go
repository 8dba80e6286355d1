package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// hostService is what one host runs: like a web server it reads its file when
// it is told to reload, keeps the old contents when it does not like the new,
// and answers checks. Each connection carries one line and one answer.
type hostService struct {
	id   string
	file string // what it reads
	log  *eventLog
	addr string
	gate *gate // "slow" waits for it on the slow host

	mu      sync.Mutex // guards serving
	serving string
}

// event is one line of the log of all services.
type event struct{ what, host, word string }

// eventLog is in the order in which things happened, on whatever host.
type eventLog struct {
	mu     sync.Mutex // guards events
	events []event
}

func (l *eventLog) add(what, host, word string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event{what, host, word})
}

// of are the events about a word.
func (l *eventLog) of(word string) []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []event
	for _, e := range l.events {
		if e.word == word {
			list = append(list, e)
		}
	}
	return list
}

// hosts are those with an event about a word, in the order of their first.
func (l *eventLog) hosts(word string) []string {
	var ids []string
	for _, e := range l.of(word) {
		if !slices.Contains(ids, e.host) {
			ids = append(ids, e.host)
		}
	}
	return ids
}

// gate is opened once.
type gate struct {
	opened chan struct{} // closed by open
	open   func()
}

func newGate() *gate {
	g := &gate{opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

// startService serves until the test ends.
func startService(t *testing.T, id, file string, log *eventLog, gate *gate) *hostService {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &hostService{id: id, file: file, log: log, addr: l.Addr().String(), gate: gate}
	serveConns(t, l, func(conn net.Conn) {
		if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			_, _ = fmt.Fprintln(conn, s.answer(strings.TrimSpace(line)))
		}
	})
	t.Cleanup(gate.open) // a test that fails must end, too
	return s
}

// answer does what a line asks for.
func (s *hostService) answer(line string) string {
	data, err := os.ReadFile(s.file)
	if err != nil {
		return err.Error()
	}
	word := string(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case line == "check" && word == s.serving:
		s.log.add("end", s.id, word)
		return "ok"
	case line == "check":
		return s.id + " serves " + s.serving
	}
	s.log.add("begin", s.id, word)
	switch {
	case word == "break" && oddHost(s.id):
		s.log.add("end", s.id, word)
		return "the service is broken on " + s.id
	case word == "kill":
		return "die"
	case word == "slow" && s.id == slowHost:
		<-s.gate.opened
	}
	s.serving = word
	return "ok"
}

// slowHost is where the word "slow" waits.
const slowHost = "web-04"

// oddHost reports whether the host's number is odd: there "break" breaks.
func oddHost(id string) bool { return strings.ContainsAny(id[len(id)-1:], "13579") }

// turn is the begin or the end of one host's turn in a rollout, from the log
// of its agent, with the zxid of the transaction that made it so.
type turn struct {
	Message string `json:"msg"`
	Rollout string `json:"rollout"`
	Zxid    int64  `json:"zxid"`
	host    string
}

// turns are the turns of all hosts in a rollout, in ZooKeeper's order.
func (s *sites) turns(rollout string) []turn {
	var list []turn
	for id, a := range s.agents {
		for line := range strings.Lines(a.log.String()) {
			var e turn
			if json.Unmarshal([]byte(line), &e) == nil && e.Rollout == rollout && strings.HasPrefix(e.Message, "rollout turn ") && e.Zxid != 0 {
				e.host = id
				list = append(list, e)
			}
		}
	}
	slices.SortFunc(list, func(a, b turn) int { return cmp.Compare(a.Zxid, b.Zxid) })
	return list
}

// atMost checks how many hosts were between swap and post-check at one time:
// by what their agents logged, in the order of the zxids, and by what their
// services saw.
func (s *sites) atMost(t *testing.T, rollout, word string, k int) {
	t.Helper()
	active := map[string]bool{}
	for _, e := range s.turns(rollout) {
		if e.Message == "rollout turn finished" {
			delete(active, e.host)
			continue
		}
		if active[e.host] = true; len(active) > k {
			t.Errorf("%d hosts have their turn at zxid %#x, want at most %d", len(active), e.Zxid, k)
		}
	}
	s.servicesAtMost(t, word, k)
}

// servicesAtMost checks the same by what the services saw alone: an agent that
// is killed does not log everything that it has done.
func (s *sites) servicesAtMost(t *testing.T, word string, k int) {
	t.Helper()
	active := map[string]bool{}
	for _, e := range s.log.of(word) {
		if e.what == "end" {
			delete(active, e.host)
			continue
		}
		if active[e.host] = true; len(active) > k {
			t.Errorf("%d hosts at once at %v, want at most %d", len(active), e, k)
		}
	}
}
