package bench

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Programs that do the same work with other libraries. They follow the children of
// a znode and write them to a file, with sync and rename at each change.
//
//go:embed peers/follow.py peers/Follow.java
var peerPrograms embed.FS

// Debian's own Python has kazoo, and is not always the first one.
const python = "/usr/bin/python3"

// javaPath is where Debian keeps Curator.
const javaPath = "/usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:/usr/share/java/curator-client.jar:" +
	"/usr/share/java/zookeeper.jar:/usr/share/java/zookeeper-jute.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar:" +
	"/usr/share/java/guava.jar:/usr/share/java/netty-handler.jar"

// peer is another library's program under way.
type peer struct {
	name string
	lane *lane
	root string
	in   io.Closer
	cmd  *exec.Cmd
}

// startPeer starts a program on a tree of its own and waits for its first file.
func (e *env) startPeer(ctx context.Context, name string, n int) (*peer, error) {
	l, root, err := e.lane(ctx, name, n)
	if err != nil {
		return nil, err
	}
	p := &peer{name: name, lane: l, root: root}
	program := "follow.py"
	if name == "curator" {
		program = "Follow.java"
	}
	source, err := peerPrograms.ReadFile("peers/" + program)
	if err != nil {
		return nil, err
	}
	program = filepath.Join(e.dir, program)
	if err = os.WriteFile(program, source, 0o600); err != nil {
		return nil, err
	}
	argv := []string{python, program}
	if name == "curator" {
		argv = []string{"java", "-cp", javaPath, program}
	}
	p.cmd = exec.CommandContext(ctx, argv[0], append(argv[1:], e.server.Addr(), root, l.file.path)...) //nolint:gosec // Our own program.
	var failure strings.Builder
	p.cmd.Stderr = &failure
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = p.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		p.stop()
		return nil, fmt.Errorf("%s: %w: %.300s", name, errors.Join(err, errLate), failure.String())
	}
	_, err = l.file.next(ctx)
	return p, err
}

// stop ends the program: its input ends.
func (p *peer) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
	p.lane.file.close()
}

// peers measures the same work beside kazoo and Curator, turn by turn.
func peers(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{10}, []int{100, 1000}) {
		for _, name := range []string{"kazoo", "curator"} {
			if err := peersOf(ctx, e, name, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func peersOf(ctx context.Context, e *env, name string, n int) error {
	p, err := e.startPeer(ctx, name, n)
	if err != nil {
		e.add(Row{Case: "beside " + name, Size: n, Note: "not measured: " + err.Error()})
		return ctx.Err()
	}
	defer p.stop()
	l, root, stop, err := e.ourLane(ctx, "ours", n)
	if err != nil {
		return err
	}
	defer stop()
	var joins [2]samples
	for i := range pick(e, 3, 60) {
		for k, side := range []*lane{l, p.lane} {
			at := []string{root, p.root}[k]
			if err := e.change(ctx, side, i); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			took, err := e.appears(ctx, side, fmt.Sprintf("%s/new-%05d", at, i))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			joins[k] = append(joins[k], took)
		}
	}
	e.add(compareSamples("change beside "+name, n, l.took, p.lane.took, 1, "set to renamed file, both sync"))
	e.add(compareSamples("join beside "+name, n, joins[0], joins[1], 1, "a new znode until it is in the file"))
	return nil
}

// appears creates a znode and waits until the file has it.
func (e *env) appears(ctx context.Context, l *lane, path string) (time.Duration, error) {
	l.file.drain()
	if err := e.seed(ctx, []string{path}, []byte("new")); err != nil {
		return 0, err
	}
	acked := time.Now()
	want := filepath.Base(path) + "=new\n"
	for {
		at, err := l.file.next(ctx)
		if err != nil {
			return 0, err
		}
		data, err := os.ReadFile(l.file.path)
		if err != nil {
			return 0, err
		}
		if strings.Contains(string(data), want) {
			l.file.drain()
			return max(at.Sub(acked), time.Microsecond), nil
		}
	}
}
