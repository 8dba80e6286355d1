package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// confdModule is confd's last release. It has no go.mod.
const confdModule = "github.com/kelseyhightower/confd@v0.16.0"

// confdFiles replace files of confd: go.mod has the versions that its lock names,
// and the list of backends has ZooKeeper alone, because the libraries of others
// do not build any more.
var confdFiles = map[string]string{
	"go.mod": `module github.com/kelseyhightower/confd

go 1.21

require (
	github.com/BurntSushi/toml v0.3.0
	github.com/kelseyhightower/memkv v0.1.1
	github.com/samuel/go-zookeeper v0.0.0-20180130194729-c4fab1ac1bec
	github.com/sirupsen/logrus v1.0.5
	github.com/xordataexchange/crypt v0.0.3-0.20170626215501-b2862e3d0a77
	golang.org/x/crypto v0.57.0
	golang.org/x/sys v0.49.0
)
`,
	"backends/client.go": `package backends

import "github.com/kelseyhightower/confd/backends/zookeeper"

type StoreClient interface {
	GetValues(keys []string) (map[string]string, error)
	WatchPrefix(prefix string, keys []string, waitIndex uint64, stopChan chan bool) (uint64, error)
}

func New(c Config) (StoreClient, error) { return zookeeper.NewZookeeperClient(c.BackendNodes) }
`,
}

// buildConfd fetches confd, builds it in the benchmark's directory and returns
// the path of the program.
func (e *env) buildConfd(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	src := filepath.Join(e.dir, "confd-source")
	if err := os.MkdirAll(src, 0o700); err != nil {
		return "", err
	}
	tool := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // Our own arguments.
		cmd.Dir = src
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off")
		var failure bytes.Buffer
		cmd.Stderr = &failure
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("go %s: %w: %.300s", args[0], err, failure.String())
		}
		return out, err
	}
	out, err := tool("mod", "download", "-json", confdModule)
	if err != nil {
		return "", err
	}
	var module struct{ Dir string }
	if err = json.Unmarshal(out, &module); err != nil {
		return "", err
	}
	if err = os.CopyFS(src, os.DirFS(module.Dir)); err != nil {
		return "", err
	}
	for name, text := range confdFiles {
		path := filepath.Join(src, name)
		// The files of the module cache are read-only, and so are their copies.
		if err = errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return "", err
		}
	}
	program := filepath.Join(e.dir, "confd")
	_, err = tool("build", "-o", program, ".")
	return program, err
}

// confd measures the same work beside confd, turn by turn. For each change confd
// reads every key three times and watches every key again, so it has few turns
// with many keys.
func confd(ctx context.Context, e *env) error {
	const name = "change beside confd"
	program, err := e.buildConfd(ctx)
	for _, n := range pick(e, []int{1}, []int{1, 100, 1000}) {
		if err == nil {
			err = confdOf(ctx, e, name, program, n)
		}
		if err != nil {
			e.add(Row{Case: name, Size: n, Note: "not measured: " + err.Error()})
		}
	}
	return ctx.Err()
}

func confdOf(ctx context.Context, e *env, name, program string, n int) error {
	c, err := e.startConfd(ctx, program, n)
	if err != nil {
		return err
	}
	defer c.stop()
	ours, _, stop, err := e.ourLane(ctx, "ours", n)
	if err != nil {
		return err
	}
	defer stop()
	lost := 0
	row := func() Row {
		note := "set to renamed file, confd does not sync"
		if lost > 0 {
			note += fmt.Sprintf("; confd missed %d changes", lost)
		}
		return compareSamples(name, n, ours.took, c.lane.took, 1, note)
	}
	err = e.turns(pick(e, 3, map[int]int{1: 60, 100: 30, 1000: 10}[n]), row, func(i int) error {
		if err := errors.Join(c.idle(ctx), e.change(ctx, ours, i)); err != nil {
			return err
		}
		missed, err := e.changeConfd(ctx, c, i)
		lost += missed
		return err
	})
	if err == nil {
		e.add(row())
	}
	return err
}

// confdRun is confd under way.
type confdRun struct {
	lane *lane
	cmd  *exec.Cmd
}

// startConfd starts confd on a tree of its own and waits for its first file.
func (e *env) startConfd(ctx context.Context, program string, n int) (*confdRun, error) {
	l, root, err := e.lane(ctx, "confd", n)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(filepath.Dir(l.file.path), "settings")
	for name, text := range map[string]string{
		"conf.d/app.toml":    fmt.Sprintf("[template]\nsrc = \"app.tmpl\"\ndest = %q\nprefix = %q\nkeys = [\"/\"]\n", l.file.path, root),
		"templates/app.tmpl": "{{range gets \"/*\"}}{{base .Key}}={{.Value}}\n{{end}}",
	} {
		path := filepath.Join(dir, name)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return nil, err
		}
	}
	c := &confdRun{lane: l}
	c.cmd = exec.CommandContext(ctx, program, "-watch", "-backend", "zookeeper", "-node", e.server.Addr(), "-confdir", dir, "-log-level", "error") //nolint:gosec // The program that we built.
	if err = c.cmd.Start(); err != nil {
		l.file.close()
		return nil, err
	}
	if _, err = l.file.next(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("confd's first file: %w", err)
	}
	return c, nil
}

func (c *confdRun) stop() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.lane.file.close()
}

// idle waits until confd watches its keys again: it has neither read nor written
// for some time. What changes before that, it does not see.
func (c *confdRun) idle(ctx context.Context) error {
	const calm = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for last, since := "", time.Now(); time.Since(since) < calm; {
		now, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/io")
		if err != nil {
			return err
		}
		if string(now) != last {
			last, since = string(now), time.Now()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(calm / 10): //nolint:forbidigo // One short timer at a time.
		}
	}
	return nil
}

// changeConfd sets one key and waits for the file. A change that confd missed is
// no sample; it is made again, and counted.
func (e *env) changeConfd(ctx context.Context, c *confdRun, i int) (int, error) {
	const patience, tries = 10 * time.Second, 3
	for missed := range tries {
		once, cancel := context.WithTimeout(ctx, patience)
		err := e.change(once, c.lane, i+missed*100000)
		late := once.Err() != nil
		cancel()
		if !late {
			return missed, err
		}
		c.lane.file.drain()
		if err := errors.Join(ctx.Err(), c.idle(ctx)); err != nil {
			return missed, err
		}
	}
	return tries, fmt.Errorf("confd missed one change after the other, %d times", tries)
}
