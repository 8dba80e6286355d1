package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// groups measures joins and leaves beside a program that only keeps names and
// data.
func groups(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{10}, []int{10, 100, 1000, 10000}) {
		if err := groupOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

func member(i int) []byte {
	return fmt.Appendf(nil, `{"host":"10.%d.%d.%d","port":8080,"name":"node-%06d"}`, i>>16&255, i>>8&255, i&255, i)
}

// crowd makes a group of n members and returns its path.
func (e *env) crowd(ctx context.Context, n int) (string, error) {
	root, err := e.root(ctx)
	if err != nil {
		return "", err
	}
	const batch = 400
	for from := 0; from < n; from += batch {
		var ops []session.Op
		for i := from; i < min(from+batch, n); i++ {
			ops = append(ops, session.CreateOp(fmt.Sprintf("%s/member_%010d", root, i), member(i), session.Persistent))
		}
		if _, err := e.writer.Multi(ctx, ops...); err != nil {
			return "", err
		}
	}
	return root, nil
}

// followed is a group that zkagent follows.
type followed struct {
	s    *session.Session
	m    meter
	news chan int // members, at each change
	stop func()
}

func (e *env) follow(ctx context.Context, path string, n int) (*followed, error) {
	f := &followed{news: make(chan int, 64)}
	var err error
	if f.s, err = e.dial(ctx, &f.m); err != nil {
		return nil, err
	}
	g := registry.NewGroup(registry.GroupConfig{Name: "web", Path: path, Format: "nerve", NoDamping: true, MaxMembers: 2 * n})
	run, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Run(run, f.s, func(g *view.Group) { f.news <- len(g.Members) })
	}()
	f.stop = func() {
		cancel()
		<-done
		_ = f.s.Close()
	}
	return f, awaitCount(ctx, f.news, n)
}

// awaitCount waits until the group has n members.
func awaitCount(ctx context.Context, news <-chan int, n int) error {
	for {
		got, err := await(ctx, news)
		if err != nil {
			return fmt.Errorf("group of %d: %w", n, err)
		}
		if got == n {
			return nil
		}
	}
}

func groupOf(ctx context.Context, e *env, n int) error {
	path, err := e.crowd(ctx, n)
	if err != nil {
		return err
	}
	before := heap()
	ours, err := e.follow(ctx, path, n)
	if err != nil {
		return err
	}
	defer ours.stop()
	each := (heap() - before) / float64(n)
	var m meter
	floor, err := newGroupFloor(ctx, e.server.Addr(), &m, path, "")
	if err != nil {
		return err
	}
	defer floor.close()
	var joins, leaves [2]samples
	var used [2][]float64
	rounds := pick(e, 5, 50)
	extra := path + "/member_9999999999"
	for range rounds {
		for k, write := range []func() error{
			func() error { _, _, err := e.writer.Create(ctx, extra, member(1<<20), session.Persistent); return err },
			func() error { return e.writer.Delete(ctx, extra, -1) },
		} {
			want := n + 1 - k
			before := ours.m.now()
			began := time.Now()
			if err := write(); err != nil {
				return err
			}
			// Both wait for the same event. The order of the receives does not
			// matter, because each follower notes its own time.
			oursAt, floorAt, err := e.both(ctx, ours.news, floor.news, want)
			if err != nil {
				return err
			}
			if k == 0 {
				joins[0], joins[1] = append(joins[0], oursAt.Sub(began)), append(joins[1], floorAt.Sub(began))
			} else {
				leaves[0], leaves[1] = append(leaves[0], oursAt.Sub(began)), append(leaves[1], floorAt.Sub(began))
			}
			used[k] = append(used[k], float64(ours.m.now().since(before).requests))
		}
	}
	e.add(compareSamples("member joins", n, joins[0], joins[1], 1.2, "both at once"))
	e.add(compareSamples("member leaves", n, leaves[0], leaves[1], 1.2, "both at once"))
	// A member may be seen to go before the list is read, which then counts for the
	// next join: the median of the turns does not know it.
	e.add(Row{Case: "requests per join", Size: n, Unit: "requests", Ours: median(used[0]), Limit: 2})
	e.add(Row{Case: "requests per leave", Size: n, Unit: "requests", Ours: median(used[1]), Limit: 1})
	if n >= 1000 { // With fewer members, the session itself costs most.
		e.add(Row{Case: "memory per member", Size: n, Unit: "bytes", Ours: each, Limit: 2000})
	}
	return nil
}

// both waits for both followers and notes when each was there.
func (e *env) both(ctx context.Context, a, b <-chan int, want int) (at, bt time.Time, err error) { //nolint:nonamedreturns // Two times.
	for at.IsZero() || bt.IsZero() {
		t := time.NewTimer(limit)
		select {
		case n := <-a:
			if n == want {
				at = time.Now()
			}
		case n := <-b:
			if n == want {
				bt = time.Now()
			}
		case <-t.C:
			return at, bt, errLate
		case <-ctx.Done():
			return at, bt, context.Cause(ctx)
		}
		t.Stop()
	}
	return at, bt, nil
}
