package bench

import (
	"context"
	"time"
)

// start measures from the start of an agent to its first file, in turns with a floor
// that connects, reads and watches each key, and writes the file.
func start(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{100}, []int{1, 1000}) {
		if err := e.startOf(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) startOf(ctx context.Context, n int) error {
	l, root, err := e.lane(ctx, "start", n)
	if err != nil {
		return err
	}
	defer l.file.close()
	var ours, floor samples
	row := func() Row {
		return compareSamples("start to first file", n, ours, floor, 0, "session included; floor: a watch and a read for each key")
	}
	err = e.turns(pick(e, 3, 20), row, func(int) error {
		began := time.Now()
		a, err := e.startAgent(ctx, root, &l.meter, file(l.file.path, whole+"{{ timestamp }}\n"))
		if err != nil {
			return err
		}
		at, err := l.file.next(ctx)
		_ = a.stop()
		if err != nil {
			return err
		}
		ours = append(ours, at.Sub(began))
		l.file.drain() // what it wrote while it stopped
		began = time.Now()
		f, err := newFileFloor(ctx, e.server.Addr(), &l.meter, l.keys, l.file.path, true)
		if err != nil {
			return err
		}
		at, err = l.file.next(ctx)
		f.close()
		floor = append(floor, at.Sub(began))
		return err
	})
	if err != nil {
		return err
	}
	e.add(row())
	return nil
}
