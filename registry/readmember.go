package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// fewChildren is the largest number of children that are read one by one. More are read in
// batches, which cost three requests for any number.
const fewChildren = 8

// memberRead is the outcome of reading one member.
type memberRead struct {
	name string
	session.WatchedResult
}

// reread reads the children that are out of date, each with a watch.
func (r *reader) reread(ctx context.Context) error {
	if len(r.dirty) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(r.dirty))
	clear(r.dirty)
	if r.room() < 0 { // Known members may shrink; the rest waits for that.
		names = slices.DeleteFunc(names, r.leaveOut)
	}
	var first error
	for _, g := range r.fetch(ctx, names) {
		if err := r.take(ctx, g); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// fetch reads the children. A name that the session rejects is an error of that
// child only, not of the whole batch.
func (r *reader) fetch(ctx context.Context, names []string) []memberRead {
	results := make([]memberRead, len(names))
	var many []string
	var at []int
	var wg sync.WaitGroup
	for i, name := range names {
		results[i].name = name
		path := session.JoinPath(r.g.cfg.Path, name)
		if len(names) > fewChildren && session.ValidatePath(path) == nil {
			many, at = append(many, path), append(at, i)
			continue
		}
		read := func() {
			g := &results[i]
			g.Data, g.Stat, g.Watch, g.Err = r.s.GetW(ctx, path)
		}
		if len(names) == 1 {
			read()
		} else {
			wg.Go(read)
		}
	}
	list, err := r.s.GetManyW(ctx, many, false, r.room())
	for i, k := range at {
		results[k].WatchedResult = list[i]
		if err != nil {
			results[k].Err = err
		}
	}
	wg.Wait()
	return results
}

// take puts the data of one child into the copy. It returns an error only when ctx
// or the session has ended. Any other error rejects just this child.
func (r *reader) take(ctx context.Context, g memberRead) error {
	switch {
	case errors.Is(g.Err, session.ErrNoNode):
		// It left between list and read; the watch of the list fires.
		r.drop(g.name)
		return nil
	case g.Err != nil && (ctx.Err() != nil || r.s.Context().Err() != nil):
		return g.Err
	}
	if errors.Is(g.Err, session.ErrNotRead) {
		if old := r.nodes[g.name]; old != nil && !old.unread {
			r.drop(g.name)
		}
		r.leaveOut(g.name)
		return nil
	}
	c := &child{watch: g.Watch, round: r.round, size: len(g.Data), mzxid: g.Stat.Mzxid}
	var was *view.Member
	if old := r.nodes[g.name]; old != nil {
		old.watch.Stop()
		was = old.member
		r.forget(old)
	}
	r.bytes += int64(c.size)
	r.touch(g.name, was)
	r.nodes[g.name] = c
	delete(r.retry, g.name)
	if g.Err != nil {
		r.retry[g.name] = time.Now().Add(rereadAfter)
		r.reject(g.name, "not readable: "+g.Err.Error())
		return nil //nolint:nilerr // the status shows it, and the reader tries again
	}
	c.watch.Join(r.bell)
	r.saw(g.Stat)
	m, err := r.judge(g)
	switch {
	case errors.Is(err, ErrIgnore):
		delete(r.reasons, g.name)
	case err != nil:
		r.reject(g.name, clip(err.Error()))
	default:
		delete(r.reasons, g.name)
		c.member = m
	}
	return nil
}

// judge decodes a child and decides whether it is a member.
func (r *reader) judge(g memberRead) (*view.Member, error) {
	m, err := decodeWith(r.g.dec, g.name, g.Data)
	if err != nil {
		return nil, err
	}
	if !r.g.cfg.allowed(m.Host) {
		return nil, fmt.Errorf("address %s is not within the allowed subnets", m.Host)
	}
	if host, ok := strings.CutSuffix(m.Node, "-"+path.Base(r.g.cfg.Path)); ok && host != "" {
		m.Node = host // the default member id of a registrar
	}
	m.Czxid, m.Mzxid, m.Created = g.Stat.Czxid, g.Stat.Mzxid, time.UnixMilli(g.Stat.Ctime)
	return &m, nil
}

// reject notes a rejected child, and logs it once per reason.
func (r *reader) reject(name, reason string) {
	if r.reasons[name] != reason {
		r.g.log.Warn("child of the group is not a member", "group", r.g.cfg.Name, "path", r.g.cfg.Path, "member", clipName(name), "reason", reason)
	}
	r.reasons[name] = reason
}
