package zktest

import "testing"

// The server of the release that the tests run serves.
func TestRelease(t *testing.T) {
	t.Parallel()
	s := Start(t)
	t.Logf("ZooKeeper %s of %s serves at %s", Version(t, Release), s.Release(), s.Addr())
}
