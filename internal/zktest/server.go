package zktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Time limits, generous because tests run on slow and busy machines.
const (
	startLimit = 3 * time.Minute
	stopGrace  = 10 * time.Second
)

// errPortTaken means that a process which does not reserve ports uses the port.
var errPortTaken = errors.New("port is taken")

// Server is one ZooKeeper server. Its methods are for one goroutine at a time.
type Server struct {
	opts   Options
	dir    string
	port   *reservation
	secure *reservation
	quorum []string // lines of zoo.cfg that only an ensemble has
	member string   // the line that names it, in an ensemble
	id     int      // number in the ensemble, 0 if alone
	proc   *process // nil while stopped
	served bool     // it has served on its port, which it therefore keeps
}

// Start starts a server that ends with the test.
func Start(tb testing.TB, opts ...Options) *Server {
	tb.Helper()
	s := newServer(tb, tb.TempDir(), oneOption(opts))
	tb.Cleanup(func() {
		s.close()
		if tb.Failed() {
			tb.Logf("end of the log of %s:\n%s", s.Addr(), s.logTail(4000))
		}
	})
	s.Start(tb)
	return s
}

func newServer(tb testing.TB, dir string, o Options) *Server {
	tb.Helper()
	record(tb)
	s := &Server{opts: o, dir: dir, port: reserve(tb)}
	if o.Secure {
		s.secure = reserve(tb)
	}
	return s
}

// Addr returns the address for clients, "127.0.0.1:port". It stays the same
// over restarts.
func (s *Server) Addr() string { return loopback(s.port.port) }

// SecureAddr returns the address for TLS clients; it needs Options.Secure.
func (s *Server) SecureAddr() string { return loopback(s.secure.port) }

// Start starts the server again, on the same port and with the data it has, and
// waits until it serves.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	s.launch(tb)
	s.awaitServing(tb)
}

// launch starts the process and does not wait until it serves.
func (s *Server) launch(tb testing.TB) {
	tb.Helper()
	if s.proc != nil {
		tb.Fatal("zktest: the server is already running")
	}
	if err := s.exec(tb); err != nil {
		tb.Fatalf("zktest: start ZooKeeper: %v", err)
	}
}

func (s *Server) exec(tb testing.TB) error {
	tb.Helper()
	if err := s.writeFiles(); err != nil {
		return err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return fmt.Errorf("%w; run: %s", err, installLine)
	}
	args := []string{
		"-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=1024", "-Djava.net.preferIPv4Stack=true",
	}
	args = append(args, s.opts.JVMFlags...)
	classPath := s.opts.classPath(tb)
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, archiveFlag) }) {
		args = append(args, s.archived(tb, classPath))
	}
	args = append(args, "-cp", classPath,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.dir, "zoo.cfg"))
	cmd := exec.Command(java, args...) //nolint:gosec,noctx // Its life is the server's, which close ends.
	cmd.Dir = s.dir
	s.proc, err = startProcess(cmd, s.logFile())
	return err
}

func (s *Server) writeFiles() error {
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	if s.id > 0 {
		if err := os.WriteFile(filepath.Join(s.dataDir(), "myid"), fmt.Appendln(nil, s.id), 0o600); err != nil {
			return fmt.Errorf("write myid: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.dir, "zoo.cfg"), []byte(s.settings()), 0o600); err != nil {
		return fmt.Errorf("write zoo.cfg: %w", err)
	}
	return nil
}

// Stop stops the server cleanly, so that it writes its data.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.end(tb, stopGrace)
}

// Kill kills the server with SIGKILL.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.end(tb, 0)
}

func (s *Server) end(tb testing.TB, grace time.Duration) {
	tb.Helper()
	if s.proc == nil {
		tb.Fatal("zktest: the server is not running")
	}
	s.proc.stop(grace)
	s.proc = nil
}

// Freeze stops the server's process with SIGSTOP: connections stay open and
// nothing answers. When it returns, no thread runs any more.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	s.mustSignal(tb, syscall.SIGSTOP)
	s.proc.awaitStopped(tb)
}

// Resume lets a frozen server continue.
func (s *Server) Resume(tb testing.TB) {
	tb.Helper()
	s.mustSignal(tb, syscall.SIGCONT)
}

func (s *Server) mustSignal(tb testing.TB, sig syscall.Signal) {
	tb.Helper()
	if s.proc == nil {
		tb.Fatal("zktest: the server is not running")
	}
	if err := s.proc.signal(sig); err != nil {
		tb.Fatalf("zktest: signal %v: %v", sig, err)
	}
}

// Wipe empties the data directory of a stopped server. The next server on its port is a
// different, empty one.
func (s *Server) Wipe(tb testing.TB) {
	tb.Helper()
	if s.proc != nil {
		tb.Fatal("zktest: wipe needs a stopped server")
	}
	if err := os.RemoveAll(s.dataDir()); err != nil {
		tb.Fatalf("zktest: wipe: %v", err)
	}
}

// close ends the process, whatever its state, and frees the ports.
func (s *Server) close() {
	if s.proc != nil {
		s.proc.stop(0)
		s.proc = nil
	}
	s.port.release()
	if s.secure != nil {
		s.secure.release()
	}
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

// logTail returns at most the last n bytes of the server's log.
func (s *Server) logTail(n int) string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}
