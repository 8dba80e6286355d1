package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// aQueue is the common interface of the FIFO queue and the priority queue.
type aQueue interface {
	Take(ctx context.Context) ([]byte, error)
	TryTake(ctx context.Context) ([]byte, error)
	Reserve(ctx context.Context) (*recipe.Reservation, error)
	TryReserve(ctx context.Context) (*recipe.Reservation, error)
	TakeOver(ctx context.Context, name string) (*recipe.Reservation, error)
	Len(ctx context.Context) (int, error)
	Purge(ctx context.Context) (int, error)
	Items(ctx context.Context, limit int) ([]recipe.Item, error)
	Peek(ctx context.Context) ([]byte, error)
}

type queueOptions struct {
	priority int
	ordered  bool
	reserve  bool
	maxLen   int
	attempts int
	waiting
	file string
}

func newQueueCommand(g *globals) *cobra.Command {
	var o queueOptions
	sub := func(use, short string, args cobra.PositionalArgs, run runE) *cobra.Command {
		c := &cobra.Command{Use: use, Short: short, Args: args, RunE: run}
		c.Flags().BoolVar(&o.ordered, "priorities", false, "the queue has priorities, in kazoo's layout (default: first in, first out)")
		c.Flags().BoolVar(&o.reserve, "reservable", false, "with --priorities: the layout whose items can be reserved")
		return c
	}
	put := sub("put NAME [BODY]", "Put an item; without BODY it is read from standard input", cobra.RangeArgs(1, 2), o.put(g))
	put.Flags().IntVar(&o.priority, "priority", 0, "priority of the item, 0 to 999, lower first; implies --priorities")
	put.Flags().IntVar(&o.maxLen, "max-len", 0, "fail when the queue has about this number of items (default: no limit)")
	put.Flags().StringVarP(&o.file, "file", "f", "", "read the body from this file (default: BODY, else standard input)")
	take := sub("take NAME", "Take the first item and print it: delivered at most once", cobra.ExactArgs(1), func(c *cobra.Command, args []string) error {
		return queueTake(c.Context(), g, args[0], o)
	})
	reserve := newReserveCommand(g, &o, sub)
	for _, c := range []*cobra.Command{take, reserve} {
		o.flags(c.Flags(), "fail at once when the queue is empty", "fail when nothing comes in this time")
	}
	length := sub("len NAME", "Print the number of items", cobra.ExactArgs(1), o.count(g, aQueue.Len))
	ls := sub("ls NAME", "List the items: name, size, attempts, state", cobra.ExactArgs(1), o.use(g, func(ctx context.Context, q aQueue, _ string) error {
		return queueList(ctx, &g.Console, q)
	}))
	peek := sub("peek NAME", "Print the first item, and leave it there", cobra.ExactArgs(1), o.use(g, func(ctx context.Context, q aQueue, path string) error {
		body, err := q.Peek(ctx)
		if err != nil {
			return empty(err, path, false)
		}
		return printBody(&g.Console, body)
	}))
	purge := sub("purge NAME", "Remove all items and print their number", cobra.ExactArgs(1), func(c *cobra.Command, args []string) error {
		if err := g.confirm(c.Context(), "remove all items of queue "+args[0]+"?"); err != nil {
			return err
		}
		return o.count(g, aQueue.Purge)(c, args)
	})
	return parent("queue", "Put and take items of queues between hosts", append([]*cobra.Command{put, take, reserve, ls, peek, length, purge}, newAckCommands(g)...)...)
}

type runE = func(*cobra.Command, []string) error

// use makes a command run fn with the queue that its first argument names.
func (o *queueOptions) use(g *globals, fn func(context.Context, aQueue, string) error) runE {
	return func(c *cobra.Command, args []string) error {
		path, err := pathOf(queuesRoot, args[0])
		if err != nil {
			return err
		}
		return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
			return fn(ctx, o.open(s, path), path)
		})
	}
}

func (o *queueOptions) count(g *globals, count func(aQueue, context.Context) (int, error)) runE {
	return o.use(g, func(ctx context.Context, q aQueue, _ string) error {
		n, err := count(q, ctx)
		if err != nil {
			return err
		}
		return g.PrintResult("items", n, "%d\n", n)
	})
}

func newReserveCommand(g *globals, o *queueOptions, sub func(use, short string, args cobra.PositionalArgs, run runE) *cobra.Command) *cobra.Command {
	reserve := sub("reserve NAME [-- CMD [ARG...]]", "Reserve the first item, for a command or until ack: delivered at least once", cobra.MinimumNArgs(1), func(c *cobra.Command, args []string) error {
		names, command := commandAfter(args, c.ArgsLenAtDash())
		switch {
		case len(names) != 1:
			return usagef("reserve takes one name")
		case len(command) > 0 && o.file != "":
			return usagef("--file is for reserve without a command; a command reads the item from its standard input")
		}
		return queueReserve(c.Context(), g, names[0], command, *o)
	})
	reserve.Long = `With a command: give it the first item on its standard input, remove the item
when it exits with 0, and return it to the queue otherwise. When the reservation is
lost, zkagent ends the command before another client can have the item, and exits
with 76.

Without a command: print the id of the reservation, then the item, or write the item
to --file. The reservation lasts for the session timeout (--session-timeout, as far
as the servers grant it). "queue ack ID" removes the item, and "queue return ID"
returns it to the queue. Without either it returns by itself.`
	reserve.Flags().StringVarP(&o.file, "file", "f", "", "without a command: write the item to this file (default: standard output)")
	reserve.Flags().IntVar(&o.attempts, "max-attempts", 0, "move an item to the queue NAME-dead after this number of reservations (default: never)")
	return reserve
}

func (o queueOptions) open(s *session.Session, path string) aQueue {
	if o.ordered {
		return recipe.NewPriorityQueue(s, recipe.PriorityQueueConfig{Path: path, MaxLen: o.maxLen, Reserve: o.reserve, MaxAttempts: o.attempts})
	}
	return recipe.NewQueue(s, recipe.QueueConfig{Path: path, MaxLen: o.maxLen, MaxAttempts: o.attempts})
}

func (o *queueOptions) put(g *globals) runE {
	return func(c *cobra.Command, args []string) error {
		o.ordered = o.ordered || c.Flags().Changed("priority")
		if o.file == "" && append(args, "-")[1] == "-" {
			args, o.file = args[:1], "-"
		}
		body, err := g.dataOf("BODY", args, o.file)
		if err != nil {
			return err
		}
		return o.use(g, func(ctx context.Context, q aQueue, _ string) error {
			switch q := q.(type) {
			case *recipe.PriorityQueue:
				err = q.Put(ctx, body, o.priority)
			case *recipe.Queue:
				err = q.Put(ctx, body)
			}
			return err
		})(c, args)
	}
}

func empty(err error, path string, gaveUp bool) error {
	if errors.Is(err, recipe.ErrEmpty) || gaveUp {
		return fail(exitTemporary, fmt.Errorf("queue %s: nothing came in time: %w", path, recipe.ErrEmpty))
	}
	return err
}

func queueTake(ctx context.Context, g *globals, name string, o queueOptions) error {
	path, err := pathOf(queuesRoot, name)
	if err != nil {
		return err
	}
	return inSessions(ctx, g, o.waiting, func(wait context.Context, s *session.Session, _ *agent.Config) error {
		take := o.open(s, path).Take
		if o.nonblock {
			take = o.open(s, path).TryTake
		}
		body, err := awaitItem(ctx, wait, g, path, take)
		if err != nil {
			return err
		}
		return printBody(&g.Console, body)
	})
}

func printBody(console *term.Console, body []byte) error {
	if console.IsJSON() {
		return console.PrintObject(bodyFields(body))
	}
	return console.Data(body)
}

func queueReserve(ctx context.Context, g *globals, name string, command []string, o queueOptions) error {
	o.reserve = true
	path, err := pathOf(queuesRoot, name)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		return queueKeep(ctx, g, path, o)
	}
	return inSessions(ctx, g, o.waiting, func(wait context.Context, s *session.Session, _ *agent.Config) error {
		r, err := queueAwait(ctx, wait, g, s, path, o)
		if err != nil {
			return err
		}
		in, err := bodyFile(r.Body())
		if err != nil {
			return err
		}
		defer in.Close()
		child := *g
		child.In = in
		err = runHeld(ctx, &child, heldCommand{
			what: "item of " + path, ctx: r.Context(), s: s, fence: r.Fence(), env: []string{"ZKAGENT_QUEUE=" + path, "ZKAGENT_ITEM=" + r.Path()},
		}, command)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err != nil {
			if rerr := r.Return(end); rerr != nil {
				g.Warnf("return the item: %v; it comes back with the end of the session", rerr)
			}
			return err
		}
		return r.Ack(end)
	})
}

func queueAwait(ctx, wait context.Context, g *globals, s *session.Session, path string, o queueOptions) (*recipe.Reservation, error) {
	reserve := o.open(s, path).Reserve
	if o.nonblock {
		reserve = o.open(s, path).TryReserve
	}
	return awaitItem(ctx, wait, g, path, reserve)
}

func awaitItem[T any](ctx, wait context.Context, g *globals, path string, take func(context.Context) (T, error)) (T, error) {
	defer g.awaiting("waiting for an item in %s", path)()
	item, err := take(wait)
	if err != nil {
		err = empty(err, path, wait.Err() != nil && ctx.Err() == nil)
	}
	return item, err
}

func bodyFields(body []byte) map[string]any {
	if utf8.Valid(body) {
		return map[string]any{"body": string(body)}
	}
	return map[string]any{"body": base64.StdEncoding.EncodeToString(body), "encoding": "base64"}
}

func bodyFile(body []byte) (*os.File, error) {
	f, err := os.CreateTemp("", "zkagent-item-")
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(body, 0) // the offset stays at the beginning
	if err := errors.Join(os.Remove(f.Name()), err); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func queueList(ctx context.Context, console *term.Console, q aQueue) error {
	type row struct {
		Name     string    `json:"name"`
		Size     int       `json:"size"`
		Priority int       `json:"priority"`
		Attempts int       `json:"attempts"`
		Reserved bool      `json:"reserved"`
		Put      time.Time `json:"put"`
	}
	list, err := q.Items(ctx, 0)
	if err != nil {
		return err
	}
	rows := lists.Map(list, func(i recipe.Item) row { return row{i.Name, i.Size, i.Priority, i.Attempts, i.Reserved, i.Put.UTC()} })
	return term.PrintRows(console, "items", rows, []string{"ITEM", "BYTES", "ATTEMPTS", "STATE"}, func(r row) []string {
		state := "ready"
		if r.Reserved {
			state = "reserved"
		}
		return []string{r.Name, strconv.Itoa(r.Size), strconv.Itoa(r.Attempts), state}
	})
}

// A reservation can outlive the command that made it. A claim belongs to one
// session, and only that session may acknowledge it. So "reserve" without a command
// hands the session over: it writes the session's id and password to a private
// directory and drops only the connection. "ack" then resumes the session. The
// reservation lasts for the session timeout after "reserve".
//
//	$XDG_RUNTIME_DIR/zkagent/reservations/<id>/session    0600
//
// Without $XDG_RUNTIME_DIR, the directory is /tmp/zkagent-<uid>. It must belong to
// us and have mode 0700.

// reservationNote is what the next process needs to know beside the session.
type reservationNote struct {
	Queue   string `json:"queue"`
	Item    string `json:"item"`
	Ordered bool   `json:"ordered"`
}

// staleReservation is the age at which the directory of an unacknowledged
// reservation is removed. Its session has expired long before: servers grant
// timeouts of seconds or minutes.
const staleReservation = 24 * time.Hour

func newAckCommands(g *globals) []*cobra.Command {
	end := func(use, short string, fn func(*recipe.Reservation, context.Context) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				root, err := reservations()
				if err != nil {
					return err
				}
				dir := filepath.Join(root, args[0])
				if _, err := os.Stat(filepath.Join(dir, "session")); args[0] != filepath.Base(args[0]) || err != nil {
					return fail(exitFailed, fmt.Errorf("no reservation %q of this user on this host", args[0]), "it may have been acknowledged or returned before")
				}
				k, err := keptSession(c.Context(), g, dir)
				if err != nil {
					return err
				}
				err = k.endReservation(c.Context(), fn)
				err = errors.Join(err, k.end(), os.RemoveAll(dir))
				if errors.Is(err, recipe.ErrNotHeld) {
					return fail(exitLost, fmt.Errorf("reservation %s has ended: %w", args[0], err), "the item may be delivered again; a larger --session-timeout of \"reserve\" lasts longer")
				}
				return err
			},
		}
	}
	ack := end("ack RESERVATION", "Remove a reserved item for good", func(r *recipe.Reservation, ctx context.Context) error { return r.Ack(ctx) })
	ack.Long = `Remove the item of a reservation that "reserve" without a command printed. Run it
on the same host, as the same user. If the reservation has ended, it fails with
exit code 76: the item may be delivered again.`
	return []*cobra.Command{ack, end("return RESERVATION", "Give a reserved item back", (*recipe.Reservation).Return)}
}

// reservations is the directory of this user's reservations.
func reservations() (string, error) {
	root := os.Getenv("XDG_RUNTIME_DIR")
	if root == "" {
		root = filepath.Join(os.TempDir(), fmt.Sprintf("zkagent-%d", os.Getuid()))
		if err := os.Mkdir(root, 0o700); err != nil && !os.IsExist(err) {
			return "", err
		}
		info, err := os.Lstat(root)
		if err != nil {
			return "", err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || int(owner.Uid) != os.Getuid() {
			return "", fail(exitPermission, fmt.Errorf("%s is not a private directory of ours", root), "set $XDG_RUNTIME_DIR")
		}
	}
	dir := filepath.Join(root, "zkagent", "reservations")
	return dir, os.MkdirAll(dir, 0o700) //nolint:gosec // the user names the directory of his own files
}

// handedSession is a session that is handed from one process to the next.
type handedSession struct {
	m   *session.Manager
	s   *session.Session
	end func() error // closes the session, unless HandOver has left it to the next process
}

// keptSession opens a session whose state is in dir, or takes it up again.
func keptSession(ctx context.Context, g *globals, dir string) (*handedSession, error) {
	c, _, err := g.zkConfig()
	if err != nil {
		return nil, err
	}
	c.StateDir = dir
	m, end, err := runManager(ctx, c)
	if err != nil {
		return nil, err
	}
	k := &handedSession{m: m, end: end}
	if k.s, err = g.reach(ctx, c, cmp.Or(g.timeout, connectTimeout), m.Session); err != nil {
		return nil, errors.Join(err, k.end())
	}
	return k, nil
}

func queueKeep(ctx context.Context, g *globals, path string, o queueOptions) (err error) {
	root, err := reservations()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleReservation {
			_ = os.RemoveAll(filepath.Join(root, e.Name())) // the next one tries again
		}
	}
	dir, err := os.MkdirTemp(root, "r-") // 0700; its name is the id of the reservation
	if err != nil {
		return err
	}
	k, err := keptSession(ctx, g, dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	handedOver := false
	defer func() {
		if err = errors.Join(err, k.end()); !handedOver {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	wait, cancel := g.patience(ctx, o.wait)
	defer cancel()
	r, err := queueAwait(ctx, wait, g, k.s, path, o)
	if err != nil {
		return err
	}
	note, err := json.Marshal(reservationNote{Queue: path, Item: r.Name(), Ordered: o.ordered})
	if err != nil {
		return err
	}
	if err := printReservation(&g.Console, filepath.Base(dir), r, o, k.s.Timeout()); err != nil {
		return err // the item returns to the queue when the session ends
	}
	r.Keep()
	k.m.SetNote(note)
	k.m.HandOver()
	handedOver = true
	return nil
}

func printReservation(console *term.Console, id string, r *recipe.Reservation, o queueOptions, lasts time.Duration) error {
	console.Say("reserved for %s; \"zkagent queue ack %s\" removes the item, otherwise it comes back", lasts, id)
	if o.file != "" {
		if err := os.WriteFile(o.file, r.Body(), 0o600); err != nil {
			return err
		}
	}
	if console.IsJSON() {
		fields := bodyFields(r.Body())
		maps.Copy(fields, map[string]any{
			"reservation": id, "item": r.Path(), "fence": r.Fence(), "attempts": r.Attempts(),
			"expires": time.Now().Add(lasts).UTC(),
		})
		return console.Line(fields)
	}
	if console.Printf("%s\n", id); o.file != "" {
		return nil
	}
	return console.Data(r.Body())
}

func (k *handedSession) endReservation(ctx context.Context, fn func(*recipe.Reservation, context.Context) error) error {
	if !k.s.Resumed() {
		return fmt.Errorf("its session is over: %w", recipe.ErrNotHeld)
	}
	var note reservationNote
	if err := json.Unmarshal(k.s.Note(), &note); err != nil {
		return fmt.Errorf("the reservation was not completed: %w", errors.Join(recipe.ErrNotHeld, err))
	}
	q := queueOptions{ordered: note.Ordered, reserve: true}.open(k.s, note.Queue)
	r, err := q.TakeOver(ctx, note.Item)
	if err != nil {
		return err
	}
	return fn(r, ctx)
}
