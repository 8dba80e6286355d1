package zktest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// The operations of more than one request of all packages.

type (
	ctx  = context.Context
	call = func(ctx) error
)

func second(_ any, err error) error { return err }

// only leaves an operation that needs no begin.
func only(do func(ctx ctx, s *session.Session) error) func(*scene, *session.Session) call {
	return func(_ *scene, s *session.Session) call {
		return func(ctx ctx) error { return do(ctx, s) }
	}
}

var operations = slices.Concat(holds, queues, transactions, configs, rollouts, members)

// acquirer is what gives a hold of type H.
type released interface{ Release(ctx ctx) error }

// releasing acquires before the cut, and releases. Afterwards somebody else acquires.
func releasing[H released](name string, acquire func(sc *scene, s *session.Session, ctx ctx) (H, error)) operation {
	return operation{
		name: "release " + name,
		begin: func(sc *scene, s *session.Session) call {
			h, err := acquire(sc, s, sc.ctx)
			sc.must(err)
			return h.Release
		},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			sc.free("/h")
			h, err := acquire(sc, sc.other, sc.ctx)
			sc.must(err)
			sc.must(h.Release(sc.ctx))
		},
	}
}

func rw(s *session.Session) *recipe.RWLock { return recipe.NewRWLock(s, recipe.LockConfig{Path: "/h"}) }

func semaphore(s *session.Session, dialect string, k int) *recipe.Semaphore {
	return recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: "/h", K: k, Dialect: dialect})
}

var holds = []operation{
	releasing("a lock", func(_ *scene, s *session.Session, ctx ctx) (*recipe.Hold, error) {
		return recipe.NewLock(s, recipe.LockConfig{Path: "/h", Revocable: true}).TryAcquire(ctx)
	}),
	releasing("a multi-lock", func(_ *scene, s *session.Session, ctx ctx) (*recipe.MultiHold, error) {
		lock := func(path string) *recipe.Lock { return recipe.NewLock(s, recipe.LockConfig{Path: path}) }
		return recipe.NewMultiLock(lock("/h/a"), lock("/h/b"), lock("/h/c")).TryAcquire(ctx)
	}),
	releasing("permits", func(_ *scene, s *session.Session, ctx ctx) (*recipe.MultiHold, error) {
		return semaphore(s, recipe.Curator, 3).TryAcquireN(ctx, 3)
	}),
	releasing("permits as kazoo", func(_ *scene, s *session.Session, ctx ctx) (*recipe.MultiHold, error) {
		return semaphore(s, recipe.Kazoo, 3).TryAcquireN(ctx, 3)
	}),
	{
		name: "a semaphore that is refused takes its number back",
		prepare: func(sc *scene) {
			sc.must(second(recipe.NewLock(sc.other, recipe.LockConfig{Path: "/h", Dialect: recipe.Kazoo}).Acquire(sc.ctx)))
		},
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(semaphore(s, recipe.Kazoo, 2).TryAcquire(ctx))
		}),
		done: []error{recipe.ErrKind},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			names, err := sc.Children("/h")
			sc.must(err)
			if len(names) != 1 {
				sc.t.Errorf("beside the holder of the lock: %v", names)
			}
			if n, err := sc.Get("/h"); err != nil || len(n.Data) > 0 {
				sc.t.Errorf("a number is left: %q, %v", n.Data, err)
			}
		},
	},
	{
		name: "a multi-lock that is refused",
		prepare: func(sc *scene) {
			sc.must(second(recipe.NewLock(sc.other, recipe.LockConfig{Path: "/h/c"}).Acquire(sc.ctx)))
		},
		begin: only(func(ctx ctx, s *session.Session) error {
			lock := func(path string) *recipe.Lock { return recipe.NewLock(s, recipe.LockConfig{Path: path}) }
			return second(recipe.NewMultiLock(lock("/h/a"), lock("/h/b"), lock("/h/c")).TryAcquire(ctx))
		}),
		done: []error{recipe.ErrHeld},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			sc.free("/h/a/")
			sc.free("/h/b/")
		},
	},
	{
		name: "downgrade",
		begin: func(sc *scene, s *session.Session) call {
			w, err := rw(s).Lock(sc.ctx)
			sc.must(err)
			return func(ctx ctx) error {
				if w.Err() != nil { // given up with an unknown result
					w, err = rw(s).Lock(ctx)
					sc.must(err)
				}
				return second(rw(s).Downgrade(ctx, w))
			}
		},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			sc.must(second(rw(sc.other).TryRLock(sc.ctx)))
			if err := second(rw(sc.dial("third", nil)).TryLock(sc.ctx)); !errors.Is(err, recipe.ErrHeld) {
				sc.t.Errorf("a writer beside a reader: %v", err)
			}
			if all, err := recipe.Contenders(sc.ctx, sc.other, "/h"); err != nil || len(all) != 2 {
				sc.t.Errorf("contenders: %+v, %v", all, err)
			}
		},
	},
	{
		name: "leave a double barrier",
		begin: func(sc *scene, s *session.Session) call {
			member := func(s *session.Session, id string) *recipe.DoubleBarrier {
				return recipe.NewDoubleBarrier(s, recipe.DoubleBarrierConfig{Path: "/h", N: 2, ID: id})
			}
			go func() {
				b := member(sc.other, "other")
				if h, err := b.Enter(sc.ctx); err != nil {
					sc.t.Error(err)
				} else if err := b.Leave(sc.ctx, h); err != nil {
					sc.t.Error(err)
				}
			}()
			b := member(s, "victim")
			h, err := b.Enter(sc.ctx)
			sc.must(err)
			return func(ctx ctx) error { return b.Leave(ctx, h) }
		},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			sc.free("/h")
			if sc.Exists("/h/ready") {
				sc.t.Error("the round goes on")
			}
		},
	},
	{
		name: "leave a group",
		begin: func(sc *scene, s *session.Session) call {
			joined, leave := context.WithCancel(sc.ctx)
			g, left := recipe.NewGroup(s, "/h", nil), make(chan error, 1)
			go func() { left <- g.Join(joined, "me", nil) }()
			time.Sleep(time.Second)
			return func(ctx) error {
				leave()
				<-left // it ends with its context
				return nil
			}
		},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			if all, err := recipe.NewGroup(sc.other, "/h", nil).Members(sc.ctx); err != nil || len(all) > 0 {
				sc.t.Errorf("members: %v, %v", all, err)
			}
		},
	},
	{
		name: "resign",
		begin: func(sc *scene, s *session.Session) call {
			leads, run := make(chan struct{}, 9), make(chan error, 1)
			c := election.New(election.Config{Name: "e", Path: "/h", ID: "victim", Once: true, Lead: func(ctx ctx, _ election.Term) {
				leads <- struct{}{}
				<-ctx.Done()
			}})
			go func() { run <- c.Run(sc.ctx, s, nil) }()
			<-leads
			return func(ctx ctx) error {
				err := c.Resign(ctx)
				<-run
				return err
			}
		},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			sc.free("/h")
		},
	},
}

func fifo(s *session.Session) *recipe.Queue {
	return recipe.NewQueue(s, recipe.QueueConfig{Path: "/q"})
}

// put prepares a queue of n items.
func put(n int) func(sc *scene) {
	return func(sc *scene) {
		for i := range n {
			sc.must(fifo(sc.other).Put(sc.ctx, fmt.Append(nil, i)))
		}
	}
}

// items checks how many a queue has, all of which can be taken.
func items(n int) func(sc *scene) {
	return func(sc *scene) {
		time.Sleep(time.Minute)
		got, err := fifo(sc.other).Len(sc.ctx)
		for range n {
			sc.must(second(fifo(sc.other).TryTake(sc.ctx)))
		}
		if got != n || err != nil {
			sc.t.Errorf("%d items are left, %v, want %d", got, err, n)
		}
		if err := second(fifo(sc.other).TryTake(sc.ctx)); !errors.Is(err, recipe.ErrEmpty) {
			sc.t.Errorf("got %v, want ErrEmpty", err)
		}
		sc.free("/q")
	}
}

// reserved ends a reservation. Nothing is left to do when its item is gone.
func reserved(end func(r *recipe.Reservation) call) func(*scene, *session.Session) call {
	return func(sc *scene, s *session.Session) call {
		r, err := fifo(s).TryReserve(sc.ctx)
		if errors.Is(err, recipe.ErrEmpty) {
			return func(ctx) error { return nil }
		}
		sc.must(err)
		return end(r)
	}
}

var queues = []operation{
	{
		name: "purge a queue", prepare: put(300),
		begin: only(func(ctx ctx, s *session.Session) error { return second(fifo(s).Purge(ctx)) }),
		left:  items(0),
	},
	{
		name: "acknowledge", prepare: put(1), left: items(0), done: []error{recipe.ErrNotHeld},
		begin: reserved(func(r *recipe.Reservation) call { return func(ctx ctx) error { return r.Ack(ctx) } }),
	},
	{
		name: "return", prepare: put(1), left: items(1), done: []error{recipe.ErrNotHeld},
		begin: reserved(func(r *recipe.Reservation) call { return r.Return }),
	},
	{
		name: "remove an id",
		prepare: func(sc *scene) {
			for range 3 {
				sc.must(recipe.NewIDQueue(sc.other, recipe.QueueConfig{Path: "/q"}).Put(sc.ctx, "x", nil))
			}
		},
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(recipe.NewIDQueue(s, recipe.QueueConfig{Path: "/q"}).Remove(ctx, "x"))
		}),
		left: items(0),
	},
	{
		name: "dead letter",
		prepare: func(sc *scene) {
			put(1)(sc)
			r, err := fifo(sc.other).TryReserve(sc.ctx)
			sc.must(err)
			sc.must(r.Return(sc.ctx))
		},
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(recipe.NewQueue(s, recipe.QueueConfig{Path: "/q", MaxAttempts: 1}).TryReserve(ctx))
		}),
		done: []error{recipe.ErrEmpty},
		left: func(sc *scene) {
			items(0)(sc)
			if n, err := recipe.NewQueue(sc.other, recipe.QueueConfig{Path: "/q-dead"}).Len(sc.ctx); n != 1 || err != nil {
				sc.t.Errorf("%d dead letters, %v", n, err)
			}
		},
	},
}

func proposal() recipe.Proposal {
	return recipe.Proposal{Sites: []string{"a"}, Deadline: time.Now().Add(24 * time.Hour)}
}

// decided prepares a transaction with a vote, and a decision.
func voted(decide bool) func(sc *scene) {
	return func(sc *scene) {
		x := recipe.NewTxn(sc.other, "/x")
		sc.must(x.Propose(sc.ctx, proposal()))
		sc.must(second(x.Vote(sc.ctx, "a", recipe.Commit)))
		if decide {
			sc.must(second(x.Coordinate(sc.ctx)))
		}
	}
}

var transactions = []operation{
	{
		name: "propose a transaction", done: []error{session.ErrNodeExists},
		begin: only(func(ctx ctx, s *session.Session) error { return recipe.NewTxn(s, "/x").Propose(ctx, proposal()) }),
		left: func(sc *scene) {
			x := recipe.NewTxn(sc.other, "/x")
			sc.must(second(x.Vote(sc.ctx, "a", recipe.Commit)))
			if d, err := x.Coordinate(sc.ctx); d != recipe.Commit || err != nil {
				sc.t.Errorf("%s, %v", d, err)
			}
		},
	},
	{
		name: "coordinate", prepare: voted(false),
		begin: only(func(ctx ctx, s *session.Session) error { return second(recipe.NewTxn(s, "/x").Coordinate(ctx)) }),
		left: func(sc *scene) {
			if d, err := recipe.NewTxn(sc.other, "/x").Result(sc.ctx); d != recipe.Commit || err != nil {
				sc.t.Errorf("%s, %v", d, err)
			}
		},
	},
	{
		name: "remove a transaction", prepare: voted(true),
		begin: only(func(ctx ctx, s *session.Session) error { return recipe.NewTxn(s, "/x").Remove(ctx) }),
		left: func(sc *scene) {
			voted(true)(sc)
		},
	},
}

// publish is what the configs of these tests have.
func publish(sc *scene, layout, value string) {
	keys := map[string][]byte{}
	for i := range 5 {
		keys[fmt.Sprintf("k%d", i)] = []byte(value)
	}
	sc.must(second(fleet.Publish(sc.ctx, sc.other, fleet.PublishConfig{Path: "/c", Layout: layout, Keys: keys})))
}

// inUse checks the values of the tree in use, and that the publishers' lock is free.
func inUse(value string) func(sc *scene) {
	return func(sc *scene) {
		tree, err := config.Read(sc.ctx, sc.other, "/c")
		sc.must(err)
		for i := range 5 {
			if got, ok := tree.Get(fmt.Sprintf("k%d", i)); !ok || string(got.Value) != value {
				sc.t.Errorf("k%d is %q, want %q", i, got.Value, value)
			}
		}
		publish(sc, "", "later")
		if tree.Layout == config.LayoutVersioned {
			sc.must(second(fleet.GC(sc.ctx, sc.other, "/c", 1, nil)))
		}
	}
}

// edited is a record in JSON with another value of a field.
func edited(sc *scene, record []byte, field string, value any) []byte {
	var fields map[string]any
	sc.must(json.Unmarshal(record, &fields))
	fields[field] = value
	data, err := json.Marshal(fields)
	sc.must(err)
	return data
}

func versions(values ...string) func(sc *scene) {
	return func(sc *scene) {
		for _, v := range values {
			publish(sc, config.LayoutVersioned, v)
		}
	}
}

func remove(sc *scene) {
	sc.must(second(fleet.Delete(sc.ctx, sc.other, "/c", "ann", "why")))
}

var configs = []operation{
	{
		name: "publish a version", prepare: versions("1"), left: inUse("2"),
		begin: only(func(ctx ctx, s *session.Session) error {
			keys := map[string][]byte{}
			for i := range 5 {
				keys[fmt.Sprintf("k%d", i)] = []byte("2")
			}
			return second(fleet.Publish(ctx, s, fleet.PublishConfig{Path: "/c", Keys: keys}))
		}),
	},
	{
		name: "roll back", prepare: versions("1", "2"), left: inUse("1"),
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(fleet.Rollback(ctx, s, fleet.PublishConfig{Path: "/c"}, 1))
		}),
	},
	{
		name: "collect garbage", prepare: versions("1", "2", "3", "4", "5", "6"),
		begin: only(func(ctx ctx, s *session.Session) error { return second(fleet.GC(ctx, s, "/c", 1, nil)) }),
		left: func(sc *scene) {
			names, err := sc.Children("/c/versions")
			sc.must(err)
			if len(names) != 2 { // in use, and the previous one
				sc.t.Errorf("versions: %v", names)
			}
			inUse("6")(sc)
		},
	},
	{
		name: "delete", prepare: versions("1"), done: []error{config.ErrNotReady},
		begin: only(func(ctx ctx, s *session.Session) error { return second(fleet.Delete(ctx, s, "/c", "ann", "why")) }),
		left: func(sc *scene) {
			if err := second(config.Read(sc.ctx, sc.other, "/c")); !errors.Is(err, config.ErrNotReady) {
				sc.t.Errorf("in use: %v", err)
			}
			sc.must(second(fleet.Restore(sc.ctx, sc.other, "/c", "ann")))
			inUse("1")(sc)
		},
	},
	{
		name: "restore", prepare: func(sc *scene) { versions("1")(sc); remove(sc) }, left: inUse("1"), done: []error{fleet.ErrNotDeleted, fleet.ErrConflict},
		begin: only(func(ctx ctx, s *session.Session) error { return second(fleet.Restore(ctx, s, "/c", "ann")) }),
	},
	{
		name: "restore a flat config", prepare: func(sc *scene) { publish(sc, config.LayoutFlat, "1"); remove(sc) }, left: inUse("1"), done: []error{fleet.ErrNotDeleted, fleet.ErrConflict},
		begin: only(func(ctx ctx, s *session.Session) error { return second(fleet.Restore(ctx, s, "/c", "ann")) }),
	},
	{
		name: "purge the trash",
		prepare: func(sc *scene) {
			versions("1")(sc)
			remove(sc)
			for _, v := range []string{"2", "3"} { // later versions: the deleted one is none of the latest
				sc.must(second(fleet.Prepare(sc.ctx, sc.other, fleet.PublishConfig{Path: "/c", Keys: map[string][]byte{"k0": []byte(v)}})))
			}
			record, err := sc.Get("/c-trash")
			sc.must(err)
			sc.must(sc.Set("/c-trash", edited(sc, record.Data, "at", time.Now().Add(-fleet.TrashKept-time.Hour))))
		},
		begin: only(func(ctx ctx, s *session.Session) error { return second(fleet.GC(ctx, s, "/c", 1, nil)) }),
		left: func(sc *scene) {
			if err := second(fleet.InTrash(sc.ctx, sc.other, "/c")); !errors.Is(err, fleet.ErrNotDeleted) {
				sc.t.Errorf("in the trash: %v", err)
			}
			publish(sc, config.LayoutVersioned, "2")
			inUse("2")(sc)
		},
	},
	{
		name: "convert", done: []error{fleet.ErrUnchanged}, prepare: func(sc *scene) { publish(sc, config.LayoutFlat, "1") },
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(fleet.Convert(ctx, s, fleet.PublishConfig{Path: "/c"}, false))
		}),
		left: func(sc *scene) {
			if sc.Exists("/c/k0") {
				sc.t.Error("a flat key stays")
			}
			inUse("1")(sc)
		},
	},
	{
		name: "freeze", prepare: versions("1"),
		begin: only(func(ctx ctx, s *session.Session) error { return fleet.Freeze(ctx, s, "/c", "ann", "why") }),
		left: func(sc *scene) {
			if f, err := fleet.Frozen(sc.ctx, sc.other, "/c"); f == nil || err != nil {
				sc.t.Errorf("frozen: %v, %v", f, err)
			}
			sc.must(second(fleet.Unfreeze(sc.ctx, sc.other, "/c", "ann")))
			inUse("1")(sc)
		},
	},
	{
		name: "unfreeze", left: inUse("1"),
		prepare: func(sc *scene) { versions("1")(sc); sc.must(fleet.Freeze(sc.ctx, sc.other, "/c", "ann", "why")) },
		begin:   only(func(ctx ctx, s *session.Session) error { return second(fleet.Unfreeze(ctx, s, "/c", "ann")) }),
	},
}

// follower makes a host follow the config, which no process plays.
func follower(sc *scene) {
	versions("1", "2")(sc)
	sc.must(sc.Create(fleet.SubscriptionPath("/c", "h"), []byte(`{"version":2}`)))
}

var steps = fleet.RolloutConfig{}

func propose(ctx ctx, s *session.Session) error {
	keys := map[string][]byte{"k0": []byte("3")}
	return second(fleet.PublishByRollout(ctx, s, fleet.PublishConfig{Path: "/c", Keys: keys, Force: true}, steps))
}

func current(sc *scene) string {
	name, err := fleet.Current(sc.ctx, sc.other, "/c")
	if !errors.Is(err, fleet.ErrNoRollout) {
		sc.must(err)
	}
	return name
}

var rollouts = []operation{
	{
		name: "open a rollout", prepare: follower, begin: only(propose), done: []error{fleet.ErrOpen, fleet.ErrConflict},
		left: func(sc *scene) {
			sc.must(fleet.Abort(sc.ctx, sc.other, "/c", current(sc), fleet.Order{By: "ann"}))
			inUse("2")(sc)
		},
	},
	{
		name: "abort a rollout", prepare: func(sc *scene) { follower(sc); sc.must(propose(sc.ctx, sc.other)) },
		begin: func(sc *scene, s *session.Session) call {
			name := current(sc)
			return func(ctx ctx) error {
				if name == "" {
					return nil // it was closed
				}
				return fleet.Abort(ctx, s, "/c", name, fleet.Order{By: "ann"})
			}
		},
		done: []error{fleet.ErrNoRollout},
		left: func(sc *scene) {
			if name := current(sc); name != "" {
				sc.t.Errorf("%s is open", name)
			}
			inUse("2")(sc)
		},
	},
	{
		name: "undo a rollout that halted",
		prepare: func(sc *scene) {
			follower(sc)
			sc.must(propose(sc.ctx, sc.other))
			path := "/c/rollouts/" + current(sc) + "/gate"
			gate, err := sc.Get(path)
			sc.must(err)
			sc.must(sc.Set(path, edited(sc, gate.Data, "state", fleet.GateHalted)))
		},
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(fleet.RollbackByRollout(ctx, s, fleet.PublishConfig{Path: "/c"}, 0, steps))
		}),
		done: []error{fleet.ErrOpen, fleet.ErrVoting, fleet.ErrConflict},
		left: func(sc *scene) {
			st, err := fleet.Read(sc.ctx, sc.other, "/c", current(sc))
			sc.must(err)
			if len(st.Proposal.Replaces) == 0 || st.Proposal.RollbackOf == 0 {
				sc.t.Errorf("open: %+v", st.Proposal)
			}
		},
	},
	{
		name: "end a dry run",
		prepare: func(sc *scene) {
			follower(sc)
			cfg := fleet.PublishConfig{Path: "/c", Keys: map[string][]byte{"k0": []byte("3")}, Force: true, Dry: true}
			r, err := fleet.Prepare(sc.ctx, sc.other, cfg)
			sc.must(err)
			sc.must(second(fleet.Propose(sc.ctx, sc.other, fleet.Request{Root: "/c", Version: r.Version, Digest: r.Digest, Dry: true})))
		},
		begin: func(sc *scene, s *session.Session) call {
			name := current(sc)
			return func(ctx ctx) error {
				if name == "" {
					return nil // it was ended
				}
				return fleet.EndDry(ctx, s, "/c", name, "ann")
			}
		},
		done: []error{fleet.ErrNoRollout},
		left: func(sc *scene) {
			if name := current(sc); name != "" {
				sc.t.Errorf("%s is open", name)
			}
			inUse("2")(sc)
		},
	},
	{
		name: "roll back by a rollout", prepare: follower, done: []error{fleet.ErrOpen, fleet.ErrVoting, fleet.ErrConflict},
		begin: only(func(ctx ctx, s *session.Session) error {
			return second(fleet.RollbackByRollout(ctx, s, fleet.PublishConfig{Path: "/c"}, 1, steps))
		}),
		left: func(sc *scene) {
			sc.must(fleet.Abort(sc.ctx, sc.other, "/c", current(sc), fleet.Order{By: "ann"}))
			inUse("2")(sc)
		},
	},
}

var members = []operation{
	{
		name: "deregister",
		begin: func(sc *scene, s *session.Session) call {
			r := registry.NewRegistrar(registry.ServiceConfig{Name: "web", Groups: []string{"/g"}, Address: "192.0.2.1", Port: 80, Drain: time.Second})
			go func() { _ = r.Run(sc.ctx, s) }()
			<-r.Joined()
			return r.Drain
		},
		left: func(sc *scene) {
			time.Sleep(time.Minute)
			sc.free("/g")
		},
	},
}
