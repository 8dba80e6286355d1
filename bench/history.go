package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
)

// historySize is how much the agent keeps of what each template has written, as it does
// without settings.
const historySize = 1 << 20

// history measures what it costs a change that the agent keeps what it has written, in
// turns with an agent that keeps nothing.
func history(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{100}, []int{1, 1000}) {
		if err := e.historyOf(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) historyOf(ctx context.Context, n int) error {
	var lanes [2]*lane
	for i, size := range []int64{historySize, 0} {
		l, root, err := e.lane(ctx, fmt.Sprintf("history-%d", size), n)
		if err != nil {
			return err
		}
		defer l.file.close()
		state := filepath.Join(filepath.Dir(l.file.path), "state")
		if err := os.Mkdir(state, 0o700); err != nil {
			return err
		}
		zk := e.zookeeper()
		zk.Dial = l.meter.dial
		a, err := runAgent(ctx, agent.Config{
			ID: "bench", Host: "bench", OnStop: "leave", ZooKeeper: zk, StateDir: state, HistorySize: size,
			Configs: []config.Config{{Name: "app", Path: root, Layout: config.LayoutPlain}},
			Bundles: []apply.Config{file(l.file.path, whole)},
		})
		if err != nil {
			return err
		}
		defer func() { _ = a.stop() }()
		if _, err := l.file.next(ctx); err != nil {
			return err
		}
		lanes[i] = l
	}
	for _, l := range lanes {
		for i := range 3 { // What an agent does once, after its first file, is no part of a change.
			if err := e.change(ctx, l, 1000+i); err != nil {
				return err
			}
		}
		l.took, l.cost = nil, 0
	}
	kept, none := lanes[0], lanes[1]
	row := func() Row {
		return compareSamples("history: set to renamed file", n, kept.took, none.took, 1.1, "floor: an agent that keeps nothing")
	}
	err := e.turns(pick(e, 10, 100), row, func(i int) error {
		for _, l := range lanes {
			if err := e.change(ctx, l, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rounds := len(kept.took)
	e.add(row())
	e.add(compare("history: processor per change", n, "ms", ms(kept.cost)/float64(rounds), ms(none.cost)/float64(rounds), 0, "until the file is in place"))
	return nil
}
