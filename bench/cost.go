package bench

import (
	"context"
	"fmt"
	"os"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
)

// serverCost is what the server counts.
type serverCost struct{ watches, received float64 }

func (e *env) serverCost(ctx context.Context) (serverCost, error) {
	watches, err := e.mntr(ctx, "zk_watch_count")
	if err != nil {
		return serverCost{}, err
	}
	received, err := e.mntr(ctx, "zk_packets_received")
	return serverCost{watches, received}, err
}

// cost is what a part of a run cost.
type cost struct {
	process, server time.Duration // of processor
	packets         float64       // from and to the server
}

func (c cost) plus(o cost) cost {
	return cost{c.process + o.process, c.server + o.server, c.packets + o.packets}
}

func (c cost) minus(o cost) cost {
	return cost{c.process - o.process, c.server - o.server, c.packets - o.packets}
}

// costNow is what this process and the server have used until now.
func (e *env) costNow(ctx context.Context) (cost, error) {
	received, err := e.mntr(ctx, "zk_packets_received")
	if err != nil {
		return cost{}, err
	}
	sent, err := e.mntr(ctx, "zk_packets_sent")
	return cost{process: cpu(), server: processor(e.server.PID()), packets: received + sent}, err
}

// mntr returns one value of the server's own count.
func (e *env) mntr(ctx context.Context, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := zktest.FourLetterWord(ctx, e.server.Addr(), "mntr")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(answer) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && k == name {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("mntr has no %s", name)
}

// cpu returns the processor time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heapAllocated is how many objects, and bytes, this process has allocated until now.
func heapAllocated() (float64, float64) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return float64(s[0].Value.Uint64()), float64(s[1].Value.Uint64())
}

// tick is the unit of processor times in /proc.
const tick = 10 * time.Millisecond

// processor returns the processor time that a process has used, from /proc; 0 when that
// cannot be read.
func processor(pid int) time.Duration {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The second field, in parentheses, may hold anything.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}
