package zktest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The ports are below the range that the kernel uses for outgoing connections. So no
// connection takes the port of a server that is down for a moment.
const (
	firstPort = 20000
	lastPort  = 32000
)

// reservation keeps one port for this process, also while no server listens on it. It is
// an abstract unix socket with a name made of the port, which other test processes
// respect. The kernel removes the socket when the process ends.
type reservation struct {
	port int
	lock net.Listener
}

// reserve returns a port that no test process has and that can be bound now.
func reserve(tb testing.TB) *reservation {
	tb.Helper()
	var listener net.ListenConfig
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // Chance, not secrecy.
		lock, err := listener.Listen(tb.Context(), "unix", "@zktest-port-"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		l, err := listener.Listen(tb.Context(), "tcp4", loopback(port))
		if err != nil {
			_ = lock.Close()
			continue
		}
		_ = l.Close()
		return &reservation{port: port, lock: lock}
	}
	tb.Fatalf("no free port on 127.0.0.1 between %d and %d", firstPort, lastPort)
	return nil
}

// Port returns a port of 127.0.0.1 that no other test gets until this one has ended, and
// that the kernel gives to no outgoing connection.
func Port(tb testing.TB) int {
	tb.Helper()
	r := reserve(tb)
	tb.Cleanup(r.release)
	return r.port
}

func (r *reservation) release() { _ = r.lock.Close() }

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
