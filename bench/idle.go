package bench

import (
	"context"
	"time"
)

// idle measures an agent with nothing to do.
func idle(ctx context.Context, e *env) error {
	l, _, stop, err := e.ourLane(ctx, "idle", 1000)
	if err != nil {
		return err
	}
	defer stop()
	// What an agent asks once after its start, on a busy machine late.
	for was := l.meter.now().requests - 1; was != l.meter.now().requests; {
		was = l.meter.now().requests
		if err := wait(ctx, pick(e, time.Second, 5*time.Second)); err != nil {
			return err
		}
	}
	d := pick(e, 2*time.Second, time.Minute)
	before, used := l.meter.now(), cpu()
	if err := wait(ctx, d); err != nil {
		return err
	}
	e.add(Row{Case: "idle: processor", Size: 1000, Unit: "ms/minute", Ours: ms(cpu()-used) * float64(time.Minute) / float64(d), Limit: 60, Note: "this whole process, its ping and those of the bench"})
	e.add(Row{Case: "idle: requests", Size: 1000, Unit: "requests", Ours: float64(l.meter.now().since(before).requests), Note: "beyond pings; 0 is wanted"})
	return nil
}

// wait waits for d.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
