package e2e

import (
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// onlyFrom waits until many requests in a row through nginx are answered by
// exactly these backends: the old workers of a reload may still answer some.
func onlyFrom(t *testing.T, n *nginxProcess, names ...string) {
	t.Helper()
	slices.Sort(names)
	are := func(count int) bool { return slices.Equal(slices.Sorted(maps.Keys(n.answering(count))), names) }
	eventually(t, "answers from "+strings.Join(names, ", ")+" only", func() bool { return are(10) && are(60) })
}

// No member changes its state more than twice here: one that does so again and
// again is kept as it was by the damping of flaps.
func TestNginx_RequestsReachExactlyTheLiveMembers(t *testing.T) {
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, "/config/shop", map[string]string{"banner": "one", "timeouts/read": "5s"})

	one, setOne := backend(t, "one")
	two, _ := backend(t, "two")
	three, _ := backend(t, "three")
	setOne(false) // ill from the start: it is no member
	startAgent(t, "api-1", serviceSettings(zk, portOf(one)))
	second := startAgent(t, "api-2", serviceSettings(zk, portOf(two)))

	web, nginx := startWeb(t, zk)
	nginx.start(t)
	web.start(t)
	upstreams := web.path("conf.d/upstreams.conf")
	fileContains(t, upstreams, "127.0.0.1:"+portOf(two), `X-Banner "one"`)
	onlyFrom(t, nginx, "two")

	setOne(true) // its check rises: it joins
	onlyFrom(t, nginx, "one", "two")
	setOne(false) // its check falls: it leaves
	onlyFrom(t, nginx, "two")

	third := startAgent(t, "api-3", serviceSettings(zk, portOf(three)))
	onlyFrom(t, nginx, "three", "two")
	second.signal(t, syscall.SIGINT) // leaves in good order
	<-second.exited
	onlyFrom(t, nginx, "three")

	publish(t, zk, "/config/shop", map[string]string{"banner": "two", "timeouts/read": "5s"})
	fileContains(t, upstreams, `X-Banner "two"`)

	// The last member leaves: nginx refuses an empty upstream, so it stays.
	third.signal(t, syscall.SIGINT)
	<-third.exited
	web.statusHolds(t, "has no members")
	unchanged(t, upstreams, fileContains(t, upstreams, "127.0.0.1:"+portOf(three)))
	onlyFrom(t, nginx, "three")
}

func TestNginx_WhatItRefusesIsNotLeftInPlace(t *testing.T) { //nolint:tparallel // Its subtests build on each other.
	t.Parallel()
	zk := zookeeper(t)
	publish(t, zk, "/config/shop", map[string]string{"timeouts/read": "5s"})
	one, _ := backend(t, "one")
	startAgent(t, "api-1", serviceSettings(zk, portOf(one)))
	web, nginx := startWeb(t, zk)
	nginx.start(t)
	web.start(t)
	upstreams := web.path("conf.d/upstreams.conf")
	good := fileContains(t, upstreams, "127.0.0.1:"+portOf(one), `proxy_read_timeout "5s"`)
	onlyFrom(t, nginx, "one")

	t.Run("a value that nginx refuses", func(t *testing.T) {
		publish(t, zk, "/config/shop", map[string]string{"timeouts/read": "eternity"})
		// What nginx says names the directive, not its value.
		web.statusHolds(t, `"stage": "check"`, "proxy_read_timeout")
		unchanged(t, upstreams, good)
		onlyFrom(t, nginx, "one")
		publish(t, zk, "/config/shop", map[string]string{"timeouts/read": "6s"})
		good = fileContains(t, upstreams, `proxy_read_timeout "6s"`)
	})
	t.Run("a broken template", func(t *testing.T) {
		web.write(t, "upstreams.conf.tmpl", "{{ nonsense }}")
		web.statusHolds(t, "nonsense")
		unchanged(t, upstreams, good)
		onlyFrom(t, nginx, "one")
	})
	t.Run("broken settings", func(t *testing.T) {
		out, code := web.run(t, "reload")
		if code == 0 {
			t.Errorf("reload of a broken template: exit 0\n%s", out)
		}
		onlyFrom(t, nginx, "one")
	})
}

// unchanged checks that the file is what it was. A check with at = "swapped"
// that is tried again shows the new file for a moment.
func unchanged(t *testing.T, path, want string) {
	t.Helper()
	fileHolds(t, path, "what it held before", func(got string) bool { return got == want })
}
