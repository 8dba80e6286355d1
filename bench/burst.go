package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
)

// burst makes a thousand changes as fast as possible, in turns on the tree of an
// agent and on that of a floor. The floor also folds changes that come while it
// reads.
func burst(ctx context.Context, e *env) error {
	ours, _, stop, err := e.ourLane(ctx, "burst", 100)
	if err != nil {
		return err
	}
	defer stop()
	floor, end, err := e.floorLane(ctx, 100)
	if err != nil {
		return err
	}
	defer end()
	n := pick(e, 100, 1000)
	var sides [2]struct {
		took     samples
		renders  int
		requests int64
	}
	rounds := pick(e, 2, 7)
	for i := range rounds {
		for k, l := range []*lane{ours, floor} {
			before, began := l.meter.now(), time.Now()
			renders, err := e.burstOf(ctx, l, n, i)
			if err != nil {
				return err
			}
			s := &sides[k]
			s.took, s.renders = append(s.took, time.Since(began)), max(s.renders, renders)
			s.requests += l.meter.now().since(before).requests
		}
	}
	e.add(Row{Case: "burst: renders, final file exact", Size: n, Unit: "renders", Ours: float64(sides[0].renders), Limit: 20, Note: fmt.Sprintf("most of %d bursts over 100 keys; the floor wrote %d files", rounds, sides[1].renders)})
	e.add(compareSamples("burst: first change to the exact file", n, sides[0].took, sides[1].took, 1.2, "both fold what comes meanwhile, and sync"))
	e.add(compare("burst: requests", n, "requests", per(sides[0].requests, rounds), per(sides[1].requests, rounds), 1, "floor: one for each event"))
	return nil
}

// burstOf makes n changes and returns how many files were written until the content
// was exact.
func (e *env) burstOf(ctx context.Context, l *lane, n, run int) (int, error) {
	l.file.drain()
	last := make(map[string]string, len(l.keys))
	for i := 0; i < n; i += 100 {
		ops := make([]session.Op, 0, 100)
		for j := range 100 {
			value := fmt.Sprintf("burst-%d-%d", run, i+j)
			ops = append(ops, session.SetOp(l.keys[j%len(l.keys)], []byte(value), -1))
			last[filepath.Base(l.keys[j%len(l.keys)])] = value
		}
		if _, err := e.writer.Multi(ctx, ops...); err != nil {
			return 0, err
		}
	}
	var b strings.Builder
	for _, k := range l.keys {
		b.WriteString(filepath.Base(k) + "=" + last[filepath.Base(k)] + "\n")
	}
	want, renders := b.String(), 0
	for {
		data, err := os.ReadFile(l.file.path)
		if err != nil {
			return 0, err
		}
		if string(data) == want {
			return renders + l.file.drain(), nil
		}
		if _, err := l.file.next(ctx); err != nil {
			return 0, fmt.Errorf("the file is not exact after a burst: %w", err)
		}
		renders++
	}
}
