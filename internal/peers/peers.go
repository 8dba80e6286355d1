// Package peers runs recipes of other libraries, for tests that share paths with
// them: Apache Curator and ZooKeeper's own recipes in Java, and Python's kazoo.
//
// Each peer is a program that takes orders as lines on its standard input and
// answers with lines; see kazoo_peer.py.
package peers

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// patience bounds the start of a peer, of which a slow machine takes long.
const patience = 90 * time.Second

//go:embed Peer.java
var javaPeer []byte

//go:embed kazoo_peer.py
var kazooPeer []byte

// Peer is a program that uses the recipes of its own library.
type Peer struct {
	in    io.Writer
	lines chan string
}

// Kazoo starts kazoo with the server at addr. It ends with the test.
func Kazoo(tb testing.TB, addr string) *Peer {
	tb.Helper()
	// kazoo comes with Debian's own Python, which need not be the first one.
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	return Start(tb, "apt-get install python3-kazoo", python, file(tb, "kazoo_peer.py", kazooPeer), addr)
}

// Curator starts Curator, and ZooKeeper's own recipes, with the server at addr.
// flags are for the Java machine. It ends with the test.
func Curator(tb testing.TB, addr string, flags ...string) *Peer {
	tb.Helper()
	const hint = "apt-get install default-jdk-headless libcurator-recipes-java libcurator-framework-java libzookeeper-java"
	var cp []string
	for _, jar := range []string{
		"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute",
		"zookeeper-recipes-lock", "zookeeper-recipes-queue", "zookeeper-recipes-election", "guava", "slf4j-api", "slf4j-nop",
		"netty-handler", "netty-transport", "netty-common", "netty-buffer", "netty-codec", "netty-resolver",
	} {
		cp = append(cp, "/usr/share/java/"+jar+".jar")
	}
	if _, err := os.Stat(cp[0]); err != nil {
		tb.Fatalf("%s is missing: %s", cp[0], hint)
	}
	args := append([]string{"-Xmx256m"}, flags...)
	classPath := strings.Join(cp, ":")
	classPath += ":" + testhelp.JavaClasses(tb, classPath, "Peer", javaPeer)
	return Start(tb, hint, "java", append(args, "-cp", classPath, "Peer", addr)...)
}

// Quick are flags for a Java machine that is to start fast.
const Quick = "-XX:TieredStopAtLevel=1"

// file writes a program where its interpreter finds it.
func file(tb testing.TB, name string, data []byte) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Start starts a program that is a peer. The hint says how to install it. It ends with the test.
func Start(tb testing.TB, hint, name string, args ...string) *Peer {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("%s is missing: %s", name, hint)
	}
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), path, args...) //nolint:gosec // the programs above
	cmd.Stderr = tb.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p := &Peer{in: in, lines: make(chan string, 100)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		for range p.lines { // drain lines that no test asked for: the reader must not block
		}
		<-read
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	p.Expect(ctx, tb, "ready")
	return p
}

// Tell gives the peer a line.
func (p *Peer) Tell(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		tb.Fatalf("tell the peer: %v", err)
	}
}

// Line returns what the peer says next.
func (p *Peer) Line(ctx context.Context, tb testing.TB) string {
	tb.Helper()
	select {
	case got, ok := <-p.lines:
		if !ok {
			tb.Fatal("the peer has ended")
		}
		return strings.TrimSpace(got)
	case <-ctx.Done():
		tb.Fatalf("the peer says nothing: %v", context.Cause(ctx))
		return ""
	}
}

// Expect fails the test when the peer does not say want next.
func (p *Peer) Expect(ctx context.Context, tb testing.TB, want string) {
	tb.Helper()
	if got := p.Line(ctx, tb); got != want {
		tb.Fatalf("the peer said %q, want %q", got, want)
	}
}

// Silent fails the test when the peer has said something already.
func (p *Peer) Silent(tb testing.TB) {
	tb.Helper()
	select {
	case got := <-p.lines:
		tb.Fatalf("the peer said %q while it should wait", got)
	default:
	}
}
