package zktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Release is the default Debian release whose ZooKeeper the tests run; empty means the
// installed one. It comes from $ZKTEST_RELEASE.
var Release = os.Getenv("ZKTEST_RELEASE")

// record adds the name of the test to the file that $ZKTEST_RECORD names. It lists
// the tests that talk to a real server, for a run against another release.
func record(tb testing.TB) {
	tb.Helper()
	name := os.Getenv("ZKTEST_RECORD")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600) //nolint:gosec // The path comes from whoever runs the tests.
	if err != nil {
		tb.Fatalf("zktest: %v", err)
	}
	test, _, _ := strings.Cut(tb.Name(), "/")
	_, err = f.WriteString(test + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		tb.Fatalf("zktest: %v", err)
	}
}

// Installed stands for the server of this machine, in place of a release.
const Installed = "installed"

// packages lists the packages that a server of another release needs, without those for
// its admin server.
var packages = []string{
	"zookeeper", "libzookeeper-java", "libslf4j-java", "libnetty-java", "libdropwizard-metrics-java", "libsnappy-java",
	"libcommons-io-java", "libcommons-cli-java", "libjackson2-core-java", "libjackson2-databind-java", "libjackson2-annotations-java",
}

// classPath returns the jars of the server: those of the installed packages, or
// those of another release alone, which are fetched once.
func (o Options) classPath(tb testing.TB) string {
	tb.Helper()
	if o.Release == "" {
		return ClassPath(tb)
	}
	java := filepath.Join(fetched(tb, o.Release), jars)
	found, err := filepath.Glob(filepath.Join(java, "*.jar"))
	if err != nil || len(found) == 0 {
		tb.Fatalf("zktest: %s has no jars", java)
	}
	list := []string{filepath.Join(java, "zookeeper-jute.jar"), filepath.Join(java, "zookeeper.jar"), filepath.Join(java, "slf4j-simple.jar"), filepath.Join(java, "slf4j-api.jar")}
	for _, jar := range found {
		// Every jar is there twice, with and without its version; one binding of
		// slf4j is enough.
		name := strings.TrimSuffix(filepath.Base(jar), ".jar")
		if !strings.ContainsAny(name, "0123456789") && !strings.HasPrefix(name, "zookeeper") && !strings.Contains(name, "slf4j") {
			list = append(list, jar)
		}
	}
	return strings.Join(list, ":")
}

// Version returns the version of ZooKeeper in a release, such as "3.9.6". For an empty
// release it returns the installed version.
func Version(tb testing.TB, release string) string {
	tb.Helper()
	root := "/"
	if release != "" {
		root = fetched(tb, release)
	}
	found, err := filepath.Glob(filepath.Join(root, jars, "zookeeper-[0-9]*.jar"))
	if err != nil || len(found) == 0 {
		tb.Fatalf("zktest: release %s has no ZooKeeper", release)
	}
	slices.Sort(found)
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "zookeeper-"), ".jar")
}

// Upgrade makes a stopped server one of another release, or of the installed one.
func (s *Server) Upgrade(tb testing.TB, release string) {
	tb.Helper()
	if s.proc != nil {
		tb.Fatal("zktest: an upgrade needs a stopped server")
	}
	s.opts.Release = release
}

// Release returns the release of the server.
func (s *Server) Release() string {
	if s.opts.Release == "" {
		return "this machine"
	}
	return "Debian " + s.opts.Release
}

// fetched returns the directory with the unpacked ZooKeeper of a release.
func fetched(tb testing.TB, release string) string {
	tb.Helper()
	return fetchedPackages(tb, release, release, packages)
}

// fetchedPackages returns the directory with the unpacked packages of a release, below
// the cache. The first test that needs them downloads them.
func fetchedPackages(tb testing.TB, release, name string, packages []string) string {
	tb.Helper()
	root, err := repository()
	if err != nil {
		tb.Fatal(err)
	}
	cache := filepath.Join(root, ".cache", "debian")
	if err := os.MkdirAll(cache, 0o750); err != nil {
		tb.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // below our own cache
	if err != nil {
		tb.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(cache, name)
	cmd := exec.CommandContext(tb.Context(), filepath.Join(root, "scripts", "fetch-debs"), append([]string{release, dir}, packages...)...) //nolint:gosec // our own script
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("zktest: fetch packages of Debian %s: %v\n%s", release, err, out)
	}
	return dir
}

// repository returns the nearest directory above that contains go.mod.
func repository() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, serr := os.Stat(filepath.Join(dir, "go.mod")); serr == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", fmt.Errorf("zktest: %w", err)
}
