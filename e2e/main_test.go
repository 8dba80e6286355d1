package e2e

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	relayMain()
	var err error
	if binary, err = zktest.Zkagent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testhelp.Economy()
	_ = flag.Set("test.parallel", "4") // The tests wait more than they compute. A flag of go test goes first.
	zktest.RunMain(m)
}

// zookeeper is where the test finds ZooKeeper, as commands take it: a chroot of its own
// on the server that all tests share.
func zookeeper(t *testing.T) string {
	t.Helper()
	return zktest.Shared(t).Addr() + zktest.Root(t)
}

// proxied is zookeeper through a proxy.
func proxied(t *testing.T, zk string) (proxy *zktest.Proxy, via string) {
	t.Helper()
	server, chroot := splitChroot(zk)
	proxy = zktest.NewProxy(t, server)
	return proxy, proxy.Addr() + chroot
}

func splitChroot(zk string) (servers, chroot string) {
	servers, chroot, ok := strings.Cut(zk, "/")
	if ok {
		chroot = "/" + chroot
	}
	return servers, chroot
}

var serverInChroot = regexp.MustCompile(`zookeeper \{\s*servers\s*= \["([^"/]+)(/[^"]+)"\]( \})?`)

// chrooted returns settings whose server has a chroot, as in "127.0.0.1:2181/root", with
// the chroot in its own setting.
func chrooted(settings string) string {
	return serverInChroot.ReplaceAllStringFunc(settings, func(text string) string {
		m := serverInChroot.FindStringSubmatch(text)
		return fmt.Sprintf("zookeeper {\n  servers = [%q]\n  chroot = %q%s", m[1], m[2], strings.Replace(m[3], " ", "\n", 1))
	})
}

// quoted is a list of texts as settings have it.
func quoted(list []string) string { return `["` + strings.Join(list, `", "`) + `"]` }

// ownZooKeeper starts a server for a test that stops or freezes it.
func ownZooKeeper(t *testing.T) *zktest.Server {
	t.Helper()
	return zktest.Start(t)
}
