package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// onlyFrom waits until requests through nginx are answered by exactly these
// backends, in several rounds, for old workers may still answer the first.
func onlyFrom(t *testing.T, n *nginxProcess, names ...string) {
	t.Helper()
	slices.Sort(names)
	eventually(t, "answers from "+strings.Join(names, ", ")+" only", func() bool {
		return slices.Equal(slices.Sorted(maps.Keys(n.answering(20))), names)
	})
	// From here on it has to stay so.
	if got := slices.Sorted(maps.Keys(n.answering(40))); !slices.Equal(got, names) {
		t.Fatalf("answers from %v, want %v", got, names)
	}
}

func TestNginx_RequestsReachExactlyTheLiveMembers(t *testing.T) {
	zk := zookeeper(t).Addr()
	publish(t, zk, "/config/shop", map[string]string{"banner": "one", "timeouts/read": "5s"})

	one, setOne := backend(t, "one")
	two, _ := backend(t, "two")
	first := startAgent(t, "api-1", serviceSettings(zk, portOf(one)))
	second := startAgent(t, "api-2", serviceSettings(zk, portOf(two)))

	web, nginx := startWeb(t, zk)
	nginx.start(t)
	web.start(t)
	upstreams := web.path("conf.d/upstreams.conf")
	fileContains(t, upstreams, "127.0.0.1:"+portOf(one), "127.0.0.1:"+portOf(two))
	onlyFrom(t, nginx, "one", "two")

	setOne(false) // its check falls: it leaves
	onlyFrom(t, nginx, "two")
	setOne(true)
	onlyFrom(t, nginx, "one", "two")

	first.signal(t, 2) // SIGINT: leaves in good order
	<-first.exited
	onlyFrom(t, nginx, "two")

	publish(t, zk, "/config/shop", map[string]string{"banner": "two", "timeouts/read": "5s"})
	fileContains(t, upstreams, `X-Banner "two"`)

	// The last member leaves: nginx refuses an empty upstream, so it stays.
	second.signal(t, 2)
	<-second.exited
	web.statusHolds(t, "empty")
	fileContains(t, upstreams, "127.0.0.1:"+portOf(two))
	onlyFrom(t, nginx, "two")
}

func TestNginx_WhatItRefusesIsNotLeftInPlace(t *testing.T) {
	zk := zookeeper(t).Addr()
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
		web.statusHolds(t, "check", "eternity")
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

func unchanged(t *testing.T, path, want string) {
	t.Helper()
	if got := fileHolds(t, path, "anything", func(string) bool { return true }); got != want {
		t.Errorf("%s changed:\n%s\nit was:\n%s", path, got, want)
	}
}
