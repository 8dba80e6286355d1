package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/zkagent/zkagent/internal/apply"
)

// fanout has many templates, each with its own key. One change must not cost more
// than with one template, and not more than a program with one file.
func fanout(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{10}, []int{1, 20, 200}) {
		if err := fanoutOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

func fanoutOf(ctx context.Context, e *env, n int) error {
	l, root, err := e.lane(ctx, "fan", n)
	if err != nil {
		return err
	}
	defer l.file.close()
	bundles := make([]apply.Config, n)
	for i := range n {
		path := filepath.Join(filepath.Dir(l.file.path), "out-"+strconv.Itoa(i)+".conf")
		bundles[i] = file(path, fmt.Sprintf("{{ key \"app/key-%05d\" }}", i))
	}
	last, err := watchFile(filepath.Join(filepath.Dir(l.file.path), "out-"+strconv.Itoa(n-1)+".conf"))
	if err != nil {
		return err
	}
	defer last.close()
	a, err := e.startAgent(ctx, root, &l.meter, bundles...)
	if err != nil {
		return err
	}
	defer func() { _ = a.stop() }()
	if _, err := last.next(ctx); err != nil {
		return err
	}
	one, end, err := e.floorLane(ctx, 1)
	if err != nil {
		return err
	}
	defer end()
	ours := &lane{keys: l.keys[n-1:], file: last}
	row := func() Row {
		return compareSamples("latency, one of many templates", n, ours.took, one.took, 1.2, "size is the number of templates; floor: one file, synced")
	}
	err = e.turns(pick(e, 10, 60), row, func(i int) error {
		if err := e.change(ctx, ours, i); err != nil {
			return err
		}
		return e.change(ctx, one, i)
	})
	if err == nil {
		e.add(row())
	}
	return err
}

// floorLane is a lane with a floor that syncs and has written its file, and what
// ends it.
func (e *env) floorLane(ctx context.Context, n int) (*lane, func(), error) {
	l, _, err := e.lane(ctx, "synced", n)
	if err != nil {
		return nil, nil, err
	}
	f, err := newFileFloor(ctx, e.server.Addr(), &l.meter, l.keys, l.file.path, true)
	if err != nil {
		l.file.close()
		return nil, nil, err
	}
	end := func() {
		f.close()
		l.file.close()
	}
	if _, err := l.file.next(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return l, end, nil
}
