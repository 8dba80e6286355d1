package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// readers is how many members are read at the same time: enough to hide the
// round trips of a group that is read for the first time.
const readers = 32

// got is the outcome of reading one member.
type got struct {
	name  string
	data  []byte
	stat  session.Stat
	watch *session.Watch
	err   error
}

// reread reads the children that are out of date, each with a watch.
func (r *reader) reread(ctx context.Context) error {
	if len(r.dirty) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(r.dirty))
	clear(r.dirty)
	var first error
	for _, g := range r.fetch(ctx, names) {
		if err := r.take(ctx, g); err != nil && first == nil {
			first = err
		}
	}
	r.changed = true
	return first
}

// fetch reads the children, some at the same time.
func (r *reader) fetch(ctx context.Context, names []string) []got {
	results := make([]got, len(names))
	read := func(i int) {
		g := got{name: names[i]}
		g.data, g.stat, g.watch, g.err = r.s.GetW(ctx, session.JoinPath(r.g.cfg.Path, g.name))
		results[i] = g
	}
	if len(names) == 1 {
		read(0)
		return results
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(readers, len(names)) {
		wg.Go(func() {
			for i := range next {
				read(i)
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

// take puts what was read of one child into the copy. Only the end of ctx or
// of the session is an error: whatever else is wrong is wrong with this child.
func (r *reader) take(ctx context.Context, g got) error {
	if g.err == nil {
		r.fan.add(g.name, g.watch)
		r.saw(g.stat)
		r.nodes[g.name] = r.judge(g)
		return nil
	}
	switch {
	case errors.Is(g.err, session.ErrNoNode):
		// It left between list and read; the list has a watch that fires.
		delete(r.nodes, g.name)
		return nil
	case ctx.Err() != nil || r.s.Context().Err() != nil:
		return g.err
	}
	r.reject(g.name, &child{reason: "not readable: " + g.err.Error(), again: time.Now().Add(rereadAfter)})
	return nil
}

// judge decodes a child and decides whether it is a member.
func (r *reader) judge(g got) *child {
	m, err := decodeWith(r.g.dec, g.name, g.data)
	if errors.Is(err, ErrIgnore) {
		return &child{}
	}
	if err == nil && !r.g.cfg.allowed(m.Host) {
		err = fmt.Errorf("address %s is not within the allowed subnets", m.Host)
	}
	if err != nil {
		return r.reject(g.name, &child{reason: clip(err.Error())})
	}
	m.Czxid, m.Mzxid, m.Created = g.stat.Czxid, g.stat.Mzxid, time.UnixMilli(g.stat.Ctime)
	return &child{member: &m}
}

// reject notes a child that is no member, and logs it once per reason.
func (r *reader) reject(name string, c *child) *child {
	if old := r.nodes[name]; old == nil || old.reason != c.reason {
		r.g.log.Warn("child of the group is not a member", "group", r.g.cfg.Name, "path", r.g.cfg.Path, "member", clipName(name), "reason", c.reason)
	}
	r.nodes[name] = c
	return c
}
