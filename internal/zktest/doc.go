// Package zktest runs real ZooKeeper servers, of Debian's package, for tests.
//
// A server listens on a free port of 127.0.0.1, has a data directory of its
// own, and ends with the test, and with the test process if that dies first.
// Starting one takes some tenths of a second.
//
//	func TestMain(m *testing.M) { zktest.RunMain(m) }
//
//	func TestX(t *testing.T) {
//		addr := zktest.Shared(t).Addr() + zktest.Root(t) // one server per test binary, one chroot per test
//	}
//
// A test that stops, kills or freezes its server starts its own with [Start], or an
// ensemble with [StartEnsemble]. A [Proxy] simulates the network between a client and a
// server: it cuts, stalls and delays.
//
// A test fails when the machine lacks something. The message has the command that
// installs it. No test is skipped.
package zktest
