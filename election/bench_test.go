package election

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/zkagent/zkagent/session"
)

// BenchmarkFailover is the time from a leader's clean stop to the next one's
// Lead, on a real server, with others behind it in the line. Its floor is a
// delete, the event and a list.
func BenchmarkFailover(b *testing.B) {
	for _, others := range []int{0, 50} {
		b.Run(strconv.Itoa(others)+" others", func(b *testing.B) {
			s := dialReal(b)
			path := "/bench-" + strconv.FormatInt(time.Now().UnixNano(), 36)
			join := func(behind int) *runner {
				r := run(b, s, Config{Name: "e", Path: path, ID: "c"})
				inLine(b, s, path, behind+1)
				return r
			}
			line := []*runner{join(0)}
			recv(testContext(b), b, line[0].terms)
			for i := range others + 1 {
				line = append(line, join(i+1))
			}
			var requests uint64
			for b.Loop() {
				before := total(s.Requests())
				must(b, line[0].stop())
				recv(testContext(b), b, line[1].terms)
				b.StopTimer()
				requests += total(s.Requests()) - before
				line = append(line[1:], join(len(line)-1))
				b.StartTimer()
			}
			b.ReportMetric(float64(requests)/float64(b.N), "requests/op")
		})
	}
}

// inLine waits until that many candidates stand in line.
func inLine(b *testing.B, s *session.Session, path string, want int) {
	b.Helper()
	for {
		names, _, err := s.Children(testContext(b), path)
		if err != nil && !errors.Is(err, session.ErrNoNode) {
			b.Fatal(err)
		}
		if len(names) >= want {
			return
		}
	}
}

func total(counts map[string]uint64) uint64 {
	var n uint64
	for op, count := range counts {
		if op != "ping" {
			n += count
		}
	}
	return n
}
