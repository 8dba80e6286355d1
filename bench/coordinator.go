package bench

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// coordinatorEnv makes a process of this program the coordinator that is measured. It
// holds the address of the server, the root of the tree and the host's id.
const coordinatorEnv = "ZKBENCH_COORDINATOR"

// coordinator measures what a host pays that coordinates the rollout of a large fleet.
// The host is a process of its own, which does nothing else. This process plays all
// other hosts: it writes their subscriptions, votes and turns.
func coordinator(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{200}, []int{1000, 10000}) {
		if err := e.coordinatorOf(ctx, n); err != nil {
			return fmt.Errorf("%d hosts: %w", n, err)
		}
	}
	return nil
}

func (e *env) coordinatorOf(ctx context.Context, n int) error {
	t, err := e.smallTree(ctx)
	if err != nil {
		return err
	}
	const name = "r-0000000000" // the first rollout of the tree
	c, err := e.startCoordinator(ctx, t.root, firstCandidate(name, n))
	if err != nil {
		return err
	}
	defer c.stop()
	f := &played{e: e, root: t.root, name: name}
	if err := f.subscribe(ctx, n-1); err != nil {
		return err
	}
	r, err := t.prepare(ctx, "voted")
	if err != nil {
		return err
	}
	idle, err := c.now()
	if err != nil {
		return err
	}
	began := time.Now()
	_, err = fleet.Propose(ctx, e.writer, fleet.Request{
		Root: t.root, Version: r.Version, Digest: r.Digest, Delta: r.Delta, Base: r.Previous, Strategy: fleet.Strategy{Parallel: n / 10},
	})
	if err != nil {
		return err
	}
	peak, err := f.play(ctx, c)
	if err != nil {
		return err
	}
	if err := e.done(ctx, t.root, name); err != nil {
		return err
	}
	took := time.Since(began)
	end, err := c.quiet(ctx)
	if err != nil {
		return err
	}
	e.add(Row{Case: "coordinator: requests of a rollout", Size: n, Unit: "requests", Ours: float64(end.Requests - idle.Requests), Note: "its own turn as a host and the deletion of the records included"})
	e.add(Row{Case: "coordinator: bytes of a rollout", Size: n, Unit: "bytes", Ours: float64(end.Bytes - idle.Bytes), Note: "both ways"})
	e.add(Row{Case: "coordinator: processor of a rollout", Size: n, Unit: "ms", Ours: ms(end.cost - idle.cost)})
	e.add(Row{Case: "coordinator: memory, most", Size: n, Unit: "bytes", Ours: peak, Note: fmt.Sprintf("RssAnon; %.1f MB before the rollout", idle.memory/1e6)})
	e.add(Row{Case: "coordinator: proposal to the end", Size: n, Unit: "ms", Ours: ms(took), Note: "a tenth at once; one process plays the hosts, which do no work"})
	return nil
}

// firstCandidate is the id of a host that stands for coordinator at once, by the draw of
// package fleet.
func firstCandidate(rollout string, hosts int) string {
	for i := 0; ; i++ {
		id := "coordinator-" + strconv.Itoa(i)
		sum := sha256.Sum256([]byte("coordinate/" + rollout + "/" + id))
		if x := float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53); x*float64(hosts) < 1 {
			return id
		}
	}
}

// played are the hosts that this process plays.
type played struct {
	e          *env
	root, name string
	ids        []string
}

func (f *played) paths(of func(id string) string) []string {
	paths := make([]string, len(f.ids))
	for i, id := range f.ids {
		paths[i] = of(id)
	}
	return paths
}

func (f *played) record(id string) string {
	return trees.RolloutsPath(f.root) + "/" + f.name + "/hosts/" + fleet.Shard(id) + "/" + id
}

func (f *played) subscribe(ctx context.Context, n int) error {
	for i := range n {
		f.ids = append(f.ids, fmt.Sprintf("host-%05d", i))
	}
	paths := f.paths(func(id string) string { return fleet.SubscriptionPath(f.root, id) })
	return f.e.seed(ctx, paths, []byte(`{"version":1,"state":"ok"}`))
}

// play votes for all hosts and takes each turn that is granted. It returns the most
// memory that the coordinator has used.
func (f *played) play(ctx context.Context, c *coordinating) (float64, error) {
	if err := f.e.seed(ctx, f.paths(f.record), []byte(`{"state":"commit","version":2,"from":1}`)); err != nil {
		return 0, err
	}
	most := 0.0
	for left := f.paths(f.record); len(left) > 0; {
		most = max(most, memoryOf(c.cmd.Process.Pid))
		granted, waiting, err := f.granted(ctx, left)
		if err != nil {
			return 0, err
		}
		for _, state := range []string{fleet.HostStarted, fleet.HostDone} {
			data, _ := json.Marshal(fleet.HostRecord{State: state, Version: 2, From: 1, Life: "one", Attempts: 1}) //nolint:errchkjson // It can be encoded.
			if err := f.set(ctx, granted, data); err != nil {
				return 0, err
			}
		}
		left = waiting
		if len(granted) == 0 {
			if err := wait(ctx, 20*time.Millisecond); err != nil {
				return 0, err
			}
		}
	}
	return most, nil
}

// granted parts the records into those whose hosts may start, and the others.
func (f *played) granted(ctx context.Context, paths []string) (granted, waiting []string, err error) { //nolint:nonamedreturns // Two lists.
	results, err := f.e.writer.GetMany(ctx, paths)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range results {
		var record fleet.HostRecord
		if err := errors.Join(r.Err, json.Unmarshal(r.Data, &record)); err != nil {
			return nil, nil, err
		}
		if record.State == fleet.HostGranted {
			granted = append(granted, paths[i])
		} else {
			waiting = append(waiting, paths[i])
		}
	}
	return granted, waiting, nil
}

func (f *played) set(ctx context.Context, paths []string, data []byte) error {
	for chunk := range slices.Chunk(paths, 400) {
		ops := make([]session.Op, len(chunk))
		for i, p := range chunk {
			ops[i] = session.SetOp(p, data, -1)
		}
		if _, err := f.e.writer.Multi(ctx, ops...); err != nil {
			return err
		}
	}
	return nil
}

// coordinating is the process of the coordinator.
type coordinating struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// spent is what it has used until now.
type spent struct {
	Requests, Bytes int64

	cost   time.Duration
	memory float64
}

func (e *env) startCoordinator(ctx context.Context, root, id string) (*coordinating, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &coordinating{cmd: exec.CommandContext(ctx, self)} //nolint:gosec // This program itself.
	c.cmd.Env = append(os.Environ(), coordinatorEnv+"="+strings.Join([]string{e.server.Addr(), root, id}, " "))
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := c.now(); err != nil { // it has subscribed
		c.stop()
		return nil, fmt.Errorf("start a coordinator: %w", err)
	}
	return c, nil
}

// now asks the process what it has used.
func (c *coordinating) now() (spent, error) {
	var s spent
	_, err := io.WriteString(c.in, "now\n")
	if err != nil {
		return s, err
	}
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s)
	}
	s.cost, s.memory = processor(c.cmd.Process.Pid), memoryOf(c.cmd.Process.Pid)
	return s, err
}

// quiet waits until the process sends no more requests.
func (c *coordinating) quiet(ctx context.Context) (spent, error) {
	for was := int64(-1); ; {
		s, err := c.now()
		if err != nil || s.Requests == was {
			return s, err
		}
		was = s.Requests
		if err := wait(ctx, time.Second); err != nil {
			return s, err
		}
	}
}

func (c *coordinating) stop() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// memoryOf returns the anonymous memory of a process in bytes, from /proc; 0 when that
// cannot be read.
func memoryOf(pid int) float64 {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kB, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return 1024 * kB
		}
	}
	return 0
}

// Coordinate runs the coordinator that another process of this program measures, and
// reports whether this process is one. It ends with its standard input.
func Coordinate(ctx context.Context) (bool, error) {
	fields := strings.Fields(os.Getenv(coordinatorEnv))
	if len(fields) != 3 {
		return false, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr, root, id := fields[0], fields[1], fields[2]
	var m meter
	s, err := session.Dial(ctx, session.Config{Servers: []string{addr}, Timeout: time.Minute, Dial: m.dial})
	if err != nil {
		return true, err
	}
	defer func() { _ = s.Close() }()
	if _, _, err := s.Create(ctx, fleet.SubscriptionPath(root, id), []byte(`{"version":1,"state":"ok"}`), session.Ephemeral); err != nil {
		return true, err
	}
	ready, st, err := trees.ReadReady(ctx, s, root)
	if err != nil {
		return true, err
	}
	tree := func(version, zxid int64) *view.Tree {
		return view.NewTree(view.Tree{Name: "app", Path: root, Layout: config.LayoutVersioned, Generation: version, Last: zxid}, nil)
	}
	p := fleet.New(fleet.Config{
		Root: root, Agent: id, Host: obedient{},
		Tree: func(_ context.Context, _ *session.Session, v fleet.Version) (*view.Tree, error) {
			return tree(v.Number, 0), nil
		},
	})
	p.Offer(tree(ready.Version, st.Mzxid))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, s) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		now := m.now()
		if err := json.NewEncoder(os.Stdout).Encode(spent{Requests: now.requests, Bytes: now.sent + now.received}); err != nil {
			return true, err
		}
	}
	cancel()
	return true, <-ended
}

// obedient is a host that agrees to everything and has nothing to do.
type obedient struct{}

func (obedient) Vote(context.Context, *view.Tree) error            { return nil }
func (obedient) Show(*view.Tree)                                   {}
func (obedient) Use(context.Context, *view.Tree, *view.Tree) error { return nil }
func (obedient) Back(context.Context, *view.Tree) error            { return nil }
