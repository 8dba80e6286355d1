package mirror

import (
	"context"
	"errors"

	"github.com/zkagent/zkagent/session"
)

// Setting two watches for each znode takes a server as long as reading them does,
// so a large tree is covered with one recursive watch before it is read (see
// [session.RecursiveWatch]). That brings the events of all that is below the root, so
// it is not done where the copy leaves out what may be loud: levels below its
// depth, and what it skips unless that is known to be quiet.
//
// A cover ends with its connection, and then the session sets all watches one
// by one, which reports what changed meanwhile: reading everything again would
// take the server longer, and move all data.

// coverFrom is the number of znodes from which on a tree is covered.
const coverFrom = 512

// coverAll covers the tree if n more znodes make that worth it.
func (m *Mirror) coverAll(ctx context.Context, n int) error {
	if m.opt.Depth > 0 || m.loud || n < m.opt.coverFrom || m.cover.Live() {
		return nil
	}
	m.cover.Release()
	c, err := m.s.WatchRecursive(ctx, m.root)
	m.cover = c
	if err != nil && (ctx.Err() != nil || m.s.Context().Err() != nil) {
		return err
	}
	return nil // Without a cover there is a watch for each.
}

// skipped takes note of a znode that is not part of the copy. If it is loud, an
// end is made of the cover.
func (m *Mirror) skipped(rel string) {
	if m.loud || m.opt.Quiet != nil && m.opt.Quiet(rel) {
		return
	}
	m.loud = true
	m.cover.Release()
	m.cover = nil
}

// watchLists gives znodes that have children a watch of the list: otherwise
// the server may not report a child that the session may not read.
func (m *Mirror) watchLists(ctx context.Context, zs []*znode) error {
	if len(zs) == 0 || !m.cover.Live() {
		return nil
	}
	watches := make([]*session.Watch, len(zs))
	for i, z := range zs {
		watches[i] = z.watch
	}
	err := m.s.WatchChildren(ctx, watches)
	if err != nil && ctx.Err() == nil && m.s.Context().Err() == nil && !errors.Is(err, session.ErrUnimplemented) {
		return nil
	}
	return err
}
