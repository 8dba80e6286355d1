package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// roster renders what the floor writes of each member.
const roster = "{{ range members \"web\" }}{{ .Host }}:{{ .Port }}\n{{ end }}"

// groupFiles measures from a join and from a leave to the renamed file of the
// members. Damping and guard are on, as they are without settings.
func groupFiles(ctx context.Context, e *env) error {
	for _, n := range pick(e, []int{10}, []int{10, 100, 1000}) {
		if err := groupFileOf(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

// roll is a program that keeps a file of a group's members.
type roll struct {
	path string // of the group
	file *arrivals
	took [2]samples // joins, leaves
	from int        // the oldest member
	to   int        // the next member
	stop func()
}

func groupFileOf(ctx context.Context, e *env, n int) error {
	ours, err := e.ourRoll(ctx, n)
	if err != nil {
		return err
	}
	defer ours.stop()
	floor, err := e.floorRoll(ctx, n)
	if err != nil {
		return err
	}
	defer floor.stop()
	rolls := []*roll{ours, floor}
	for range 3 { // What an agent asks once, after its first file, is no part of a change.
		for _, r := range rolls {
			if err := e.comeAndGo(ctx, r); err != nil {
				return err
			}
		}
	}
	ours.took, floor.took = [2]samples{}, [2]samples{}
	row := func(k int) Row {
		name := [2]string{"join to renamed file", "leave to renamed file"}[k]
		return compareSamples(name, n, ours.took[k], floor.took[k], 1.2, "floor syncs the file too")
	}
	err = e.turns(pick(e, 20, 200), func() Row { return row(1) }, func(int) error {
		for _, r := range rolls {
			if err := e.comeAndGo(ctx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.add(row(0))
	e.add(row(1))
	return nil
}

// roll makes a group of n members, and the file of a program to come.
func (e *env) roll(ctx context.Context, name string, n int) (*roll, error) {
	path, err := e.crowd(ctx, n)
	if err != nil {
		return nil, err
	}
	l, _, err := e.lane(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	return &roll{path: path, file: l.file, to: n}, nil
}

// ourRoll is an agent that keeps a file of n members.
func (e *env) ourRoll(ctx context.Context, n int) (*roll, error) {
	r, err := e.roll(ctx, "ours", n)
	if err != nil {
		return nil, err
	}
	a, err := runAgent(ctx, agent.Config{
		ID: "bench", Host: "bench", OnStop: "leave", ZooKeeper: e.zookeeper(),
		Groups:  []registry.GroupConfig{{Name: "web", Path: r.path, Format: "nerve"}},
		Bundles: []apply.Config{file(r.file.path, roster)},
	})
	if err != nil {
		r.file.close()
		return nil, err
	}
	return r, r.begin(ctx, func() {
		_ = a.stop()
		r.file.close()
	})
}

// floorRoll is the least program that keeps such a file.
func (e *env) floorRoll(ctx context.Context, n int) (*roll, error) {
	r, err := e.roll(ctx, "floor", n)
	if err != nil {
		return nil, err
	}
	var m meter
	g, err := newGroupFloor(ctx, e.server.Addr(), &m, r.path, r.file.path)
	if err != nil {
		r.file.close()
		return nil, err
	}
	return r, r.begin(ctx, func() {
		g.close()
		r.file.close()
	})
}

// begin waits for the first file.
func (r *roll) begin(ctx context.Context, stop func()) error {
	r.stop = stop
	_, err := r.file.next(ctx)
	if err != nil {
		stop()
	}
	return err
}

// comeAndGo lets a member join, and the oldest leave.
func (e *env) comeAndGo(ctx context.Context, r *roll) error {
	for k, write := range []func() error{
		func() error {
			_, _, err := e.writer.Create(ctx, memberPath(r.path, r.to), member(r.to), session.Persistent)
			r.to++
			return err
		},
		func() error {
			err := e.writer.Delete(ctx, memberPath(r.path, r.from), -1)
			r.from++
			return err
		},
	} {
		if err := write(); err != nil {
			return err
		}
		acked := time.Now()
		at, err := r.file.next(ctx)
		if err != nil {
			return fmt.Errorf("member %d: %w", r.to, err)
		}
		r.took[k] = append(r.took[k], max(at.Sub(acked), time.Microsecond))
	}
	return nil
}

func memberPath(dir string, i int) string { return fmt.Sprintf("%s/member_%010d", dir, i) }
