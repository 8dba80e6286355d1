package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest"
)

// cable is the network between one agent and ZooKeeper.
type cable struct {
	addr string   // where the agent finds ZooKeeper
	via  []string // what the agent is to be executed by; nil: nothing
	cut  func(t *testing.T, lost ...zktest.Direction)
	heal func(t *testing.T)
}

// newCable is a network namespace of the agent's own, in which nftables drops
// packets, where this machine lets us make one; elsewhere it is a proxy that
// holds them back.
func newCable(t *testing.T, zk string) cable {
	t.Helper()
	ns, err := newNamespace(t)
	if err != nil {
		t.Logf("a proxy plays the network: %v", err)
		return proxyCable(t, zk)
	}
	ns.relay(t, zk)
	return cable{addr: relayAddr, via: []string{"ip", "netns", "exec", ns.name}, cut: ns.drop, heal: ns.pass}
}

// proxyCable plays the network with a proxy. A connection that is begun while
// packets are lost in any direction is not established: the proxy leads it nowhere.
func proxyCable(t *testing.T, zk string) cable {
	t.Helper()
	nobody, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nobody.Close() })
	proxy := zktest.NewProxy(t, zk)
	return cable{
		addr: proxy.Addr(),
		cut: func(_ *testing.T, lost ...zktest.Direction) {
			proxy.SetTarget(nobody.Addr().String())
			for _, d := range lost {
				proxy.CutOneWay(d)
			}
		},
		heal: func(*testing.T) {
			proxy.SetTarget(zk)
			proxy.Heal()
		},
	}
}

// namespace is a network in which there is only a loopback.
type namespace struct{ name string }

var namespaces atomic.Int64

// newNamespace makes a network namespace that ends with the test, or says why it
// cannot.
func newNamespace(t *testing.T) (*namespace, error) {
	t.Helper()
	ns := &namespace{fmt.Sprintf("zkagent-%d-%d", os.Getpid(), namespaces.Add(1))}
	if err := system("ip", "netns", "add", ns.name); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := system("ip", "netns", "delete", ns.name); err != nil {
			t.Log(err)
		}
	})
	return ns, errors.Join(
		ns.run("ip", "link", "set", "lo", "up"),
		ns.run("nft", "add table inet cut; add chain inet cut input { type filter hook input priority 0; policy accept; }"),
		ns.run("nft", "add rule inet cut input tcp dport 1 drop; flush chain inet cut input"),
	)
}

func (ns *namespace) run(args ...string) error {
	return system(append([]string{"ip", "netns", "exec", ns.name}, args...)...)
}

// system runs a command of the system.
func system(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// drop makes packets of these directions vanish.
func (ns *namespace) drop(t *testing.T, lost ...zktest.Direction) {
	t.Helper()
	_, port, _ := net.SplitHostPort(relayAddr)
	rules := "flush chain inet cut input"
	if slices.Contains(lost, zktest.ClientToServer) {
		rules += "; add rule inet cut input tcp dport " + port + " drop"
	}
	if slices.Contains(lost, zktest.ServerToClient) {
		rules += "; add rule inet cut input tcp sport " + port + " drop"
	}
	if err := ns.run("nft", rules); err != nil {
		t.Fatal(err)
	}
}

// pass lets all packets through again.
func (ns *namespace) pass(t *testing.T) {
	t.Helper()
	ns.drop(t)
}

// relayAddr is where ZooKeeper is found in a namespace.
const (
	relayAddr = "127.0.0.1:2181"
	relayVar  = "ZKAGENT_TEST_RELAY"
)

// relay makes ZooKeeper reachable in the namespace: a process in it passes
// connections on through a socket in the file system, which knows no namespaces.
func (ns *namespace) relay(t *testing.T, zk string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "zka-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "relay")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	zktest.NewProxyOn(t, l, zk)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", ns.name, exe)
	cmd.Env = append(os.Environ(), relayVar+"="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		t.Fatalf("the relay does not start: %v", err)
	}
}

// relayMain is the process in the namespace; it never returns there.
func relayMain() {
	socket := os.Getenv(relayVar)
	if socket == "" {
		return
	}
	l, err := net.Listen("tcp4", relayAddr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("r")
	for {
		client, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go relayConn(client, socket)
	}
}

// relayConn passes one connection on; it ends when one side does.
func relayConn(client net.Conn, socket string) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	end := sync.OnceFunc(func() { client.Close(); server.Close() })
	var wg sync.WaitGroup
	for _, c := range [][2]net.Conn{{client, server}, {server, client}} {
		wg.Go(func() {
			defer end()
			_, _ = io.Copy(c[0], c[1])
		})
	}
	wg.Wait()
}
