package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// dnsQuery is a query for the addresses of a name.
func dnsQuery(name string) []byte {
	q := []byte{0, 7}                           // id
	q = append(q, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired, one question
	for label := range strings.SplitSeq(name, ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	return append(q, 0, 0, 1, 0, 1) // A, IN
}

// dnsAnswers asks once and returns how many records came back.
func dnsAnswers(conn net.Conn, query, buf []byte) int {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := conn.Write(query); err != nil {
		return 0
	}
	n, err := conn.Read(buf)
	if err != nil || n < 12 {
		return 0
	}
	return int(buf[6])<<8 | int(buf[7])
}

// dnsRate asks in a closed loop with four clients and returns answers a second.
func dnsRate(t *testing.T, addr string, names []string) float64 {
	t.Helper()
	const clients, asked = 4, 2000
	var wg sync.WaitGroup
	var answers atomic.Int64
	began := time.Now()
	for c := range clients {
		wg.Go(func() {
			conn, err := net.Dial("udp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			buf := make([]byte, 4096)
			for i := range asked {
				if dnsAnswers(conn, dnsQuery(names[(i+c)%len(names)]), buf) > 0 {
					answers.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := answers.Load(); n != clients*asked {
		t.Errorf("%s: %d of %d queries have an answer", addr, n, clients*asked)
	}
	return float64(answers.Load()) / time.Since(began).Seconds()
}

// The agent answers beside dnsmasq with the same names in a file, and a join is
// answered when it is in a rendered file. The test wants all answers; its figures
// are in docs/performance.md.
func TestDNS_Speed(t *testing.T) {
	testhelp.OnlyAll(t, "it compares speeds")
	zk := zookeeper(t)
	s := dialZK(t, zk)
	var names []string
	var hosts strings.Builder
	for i := range 20 {
		putMember(t, s, fmt.Sprintf("/services/g%d", i), "m", fmt.Sprintf("10.0.0.%d", i+1), 80, 1)
		names = append(names, fmt.Sprintf("g%d.all.groups.zkagent", i))
		fmt.Fprintf(&hosts, "10.0.0.%d %s\n", i+1, names[i])
	}
	if err := s.CreateParents(t.Context(), "/joins/x"); err != nil {
		t.Fatal(err)
	}
	ip := dnsAddress()
	a := startAgent(t, "host-1", `
zookeeper { servers = ["`+zk+`"] }
groups "all" { path = "/services" }
group "joins" { path = "/joins" }
template "joins" {
  contents    = "{{ range members \"joins\" }}{{ .Host }}\n{{ else }}none\n{{ end }}"
  destination = "DIR/joins"
}
dns { listen = "`+ip+`:53" }
`)
	answered(t, []string{"10.0.0.20"}, "dig", "@"+ip, "+short", "+time=2", "+tries=1", names[19])
	dir, port := t.TempDir(), freePort(t)
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte(hosts.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	startTalking(t, "dnsmasq", nil, "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--addn-hosts="+file,
		"--bind-interfaces", "--listen-address=127.0.0.1", "--user=root", "--pid-file=", "--port="+port)
	answered(t, []string{"10.0.0.20"}, "dig", "@127.0.0.1", "-p", port, "+short", "+time=2", "+tries=1", names[19])
	var ours, theirs []float64
	for range 3 { // in turns, so that a busy moment is one of both
		ours = append(ours, dnsRate(t, ip+":53", names))
		theirs = append(theirs, dnsRate(t, "127.0.0.1:"+port, names))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	t.Logf("%.0f answers a second, dnsmasq %.0f: ratio %.2f", ours[1], theirs[1], ours[1]/theirs[1])

	answer, rendered := joins(t, s, a, ip+":53")
	t.Logf("join to answer %s, join to file %s: ratio %.2f", round(answer), round(rendered), float64(answer)/float64(rendered))
}

// pollPause is between two looks at a real process: so exact are the times of joins.
const pollPause = 200 * time.Microsecond

// joins returns the medians of the time until a join is answered, and until it is in
// the file. One goroutine looks at each.
func joins(t *testing.T, s *session.Session, a *agentProcess, addr string) (answer, rendered time.Duration) {
	t.Helper()
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query, buf := dnsQuery("joins.group.zkagent"), make([]byte, 4096)
	var answers, files []time.Duration
	fileContains(t, a.path("joins"), "none")
	for n := 1; n <= 15; n++ {
		began := time.Now()
		putMember(t, s, "/joins", fmt.Sprintf("m%d", n), fmt.Sprintf("10.1.0.%d", n), 80, 1)
		var wg sync.WaitGroup
		var inAnswer, inFile time.Duration
		wg.Go(func() {
			for dnsAnswers(conn, query, buf) < n && time.Since(began) < limit {
				time.Sleep(pollPause)
			}
			inAnswer = time.Since(began)
		})
		wg.Go(func() {
			for time.Since(began) < limit {
				if data, _ := os.ReadFile(a.path("joins")); strings.Count(string(data), "10.1.0.") >= n {
					break
				}
				time.Sleep(pollPause)
			}
			inFile = time.Since(began)
		})
		wg.Wait()
		if inAnswer >= limit || inFile >= limit {
			t.Fatalf("join %d: %s until the answer, %s until the file", n, inAnswer, inFile)
		}
		answers, files = append(answers, inAnswer), append(files, inFile)
	}
	slices.Sort(answers)
	slices.Sort(files)
	return answers[len(answers)/2], files[len(files)/2]
}
