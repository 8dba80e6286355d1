package zktest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// archiveFlag names the archive that a server of its own writes at its end.
const archiveFlag = "-XX:ArchiveClassesAtExit="

// archived returns the flag for an archive with the classes of the server: with them, a
// server starts in half of the processor time. The first server of a machine waits until
// another one has written the archive. It is kept in .cache of the module, one for each
// set of jars, and the JVM does not use one that does not fit.
func (s *Server) archived(tb testing.TB, classPath string) string {
	tb.Helper()
	root, err := testhelp.ModuleRoot()
	if err != nil {
		tb.Fatal(err)
	}
	sum := sha256.New()
	for jar := range strings.SplitSeq(classPath, ":") {
		if info, err := os.Stat(jar); err == nil {
			_, _ = sum.Write([]byte(jar + info.ModTime().String()))
		}
	}
	file := filepath.Join(root, ".cache", "zookeeper-"+hex.EncodeToString(sum.Sum(nil)[:8])+".jsa")
	_ = os.Mkdir(filepath.Dir(file), 0o755)                              //nolint:gosec // As make does; see JavaClasses.
	lock, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // In the module's own directory.
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		o := s.opts
		o.Secure, o.Settings, o.JVMFlags = false, nil, []string{archiveFlag + file + ".new"}
		dir, err := os.MkdirTemp("", "zktest-") //nolint:usetesting // The shared server's test may have another life.
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		first := newServer(tb, dir, o)
		first.Start(tb)
		first.Stop(tb)
		first.close()
		_ = os.Rename(file+".new", file) // A server starts without it, too.
	}
	return "-XX:SharedArchiveFile=" + file
}
