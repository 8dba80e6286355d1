package zktest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Options configures a server. The zero value of a field means its default.
type Options struct {
	TickTime          time.Duration // default 100 ms; expiry is rounded up to it
	MinSessionTimeout time.Duration // default 2 ticks
	MaxSessionTimeout time.Duration // default 60 s
	Secure            bool          // also listen for TLS; see [Server.SecureAddr]
	Settings          []string      // further lines of zoo.cfg
	JVMFlags          []string      // further flags, e.g. -Dzookeeper.enforceQuota=true
	Reconfig          bool          // the ensemble may be reconfigured
	Observers         int           // number of servers of an ensemble, the last ones, without a vote
	Release           string        // Debian release whose server is run, or Installed; default [Release]
}

func (o Options) withDefaults() Options {
	if o.Release = cmp.Or(o.Release, Release); o.Release == Installed {
		o.Release = ""
	}
	if o.TickTime == 0 {
		o.TickTime = 100 * time.Millisecond
	}
	if o.MinSessionTimeout == 0 {
		o.MinSessionTimeout = 2 * o.TickTime
	}
	if o.MaxSessionTimeout == 0 {
		o.MaxSessionTimeout = time.Minute
	}
	return o
}

func oneOption(opts []Options) Options {
	if len(opts) == 0 {
		return Options{}.withDefaults()
	}
	return opts[0].withDefaults()
}

// installLine is printed when something is missing.
const installLine = "apt-get install -y --no-install-recommends zookeeper openjdk-17-jre-headless (or run scripts/setup-tests)"

const jars = "/usr/share/java"

// ClassPath returns the jars of Debian's server, with the jars for TLS that its manifest
// lacks. It fails the test when the package is missing.
func ClassPath(tb testing.TB) string {
	tb.Helper()
	if _, err := os.Stat(filepath.Join(jars, "zookeeper.jar")); err != nil {
		tb.Fatalf("ZooKeeper is not installed: %v; run: %s", err, installLine)
	}
	paths := make([]string, 0, 4)
	for _, jar := range []string{"zookeeper", "slf4j-simple", "netty-codec", "netty-resolver"} {
		paths = append(paths, filepath.Join(jars, jar+".jar"))
	}
	return strings.Join(paths, ":")
}

// settings returns zoo.cfg.
func (s *Server) settings() string {
	o := s.opts
	lines := []string{
		fmt.Sprintf("tickTime=%d", o.TickTime.Milliseconds()),
		fmt.Sprintf("minSessionTimeout=%d", o.MinSessionTimeout.Milliseconds()),
		fmt.Sprintf("maxSessionTimeout=%d", o.MaxSessionTimeout.Milliseconds()),
		"dataDir=" + s.dataDir(),
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
		"extendedTypesEnabled=true",
		"maxClientCnxns=0",
	}
	if !o.Reconfig { // else it is in the lines of the quorum
		lines = append(lines, fmt.Sprintf("clientPort=%d", s.port.port), "clientPortAddress=127.0.0.1")
	}
	if s.secure != nil {
		lines = append(lines,
			fmt.Sprintf("secureClientPort=%d", s.secure.port),
			"secureClientPortAddress=127.0.0.1",
			"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
	}
	lines = append(lines, s.quorum...)
	lines = append(lines, o.Settings...)
	return strings.Join(lines, "\n") + "\n"
}
