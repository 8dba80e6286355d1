package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
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
		if ok, err := g.confirm(c.Context(), "remove all items of queue "+args[0]+"?"); err != nil || !ok {
			return err
		}
		return o.count(g, aQueue.Purge)(c, args)
	})
	return parent("queue", "Put and take items of queues between hosts", append([]*cobra.Command{put, take, reserve, ls, peek, length, purge}, newAckCommands(g)...)...)
}

// runE is what cobra runs for a command.
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

// count makes a command print a number of items.
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

// waitQueue runs fn with the queue of the name. While fn waits, a new session
// replaces a lost one.
func waitQueue(ctx context.Context, g *globals, name string, o queueOptions, fn func(wait context.Context, s *session.Session, path string) error) error {
	path, err := pathOf(queuesRoot, name)
	if err != nil {
		return err
	}
	return inSessions(ctx, g, o.waiting, func(wait context.Context, s *session.Session, _ *agent.Config) error { return fn(wait, s, path) })
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
		body, err := o.body(g, args)
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

func (o *queueOptions) body(g *globals, args []string) ([]byte, error) {
	switch {
	case len(args) == 2 && o.file != "":
		return nil, usagef("give the body as an argument or by --file, not both")
	case len(args) == 2 && args[1] != "-":
		return []byte(args[1]), nil
	case o.file != "":
		return g.readInput(o.file)
	}
	return io.ReadAll(g.In)
}

func empty(err error, path string, gaveUp bool) error {
	if errors.Is(err, recipe.ErrEmpty) || gaveUp {
		return fail(exitTemporary, fmt.Errorf("queue %s: nothing came in time: %w", path, recipe.ErrEmpty))
	}
	return err
}

func queueTake(ctx context.Context, g *globals, name string, o queueOptions) error {
	return waitQueue(ctx, g, name, o, func(wait context.Context, s *session.Session, path string) error {
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
	if len(command) == 0 {
		path, err := pathOf(queuesRoot, name)
		if err != nil {
			return err
		}
		return queueKeep(ctx, g, path, o)
	}
	return waitQueue(ctx, g, name, o, func(wait context.Context, s *session.Session, path string) error {
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

// awaitItem takes or reserves an item, and says so when it waits for one.
func awaitItem[T any](ctx, wait context.Context, g *globals, path string, take func(context.Context) (T, error)) (T, error) {
	defer g.awaiting("waiting for an item in %s", path)()
	item, err := take(wait)
	if err != nil {
		err = empty(err, path, wait.Err() != nil && ctx.Err() == nil)
	}
	return item, err
}

// bodyFields are a body in JSON: as text where it is text, else in base64, and
// "encoding" says so.
func bodyFields(body []byte) map[string]any {
	if utf8.Valid(body) {
		return map[string]any{"body": string(body)}
	}
	return map[string]any{"body": base64.StdEncoding.EncodeToString(body), "encoding": "base64"}
}

// bodyFile is a file without a name that holds the item.
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
	rows := listOf(list, func(i *recipe.Item) row { return row{i.Name, i.Size, i.Priority, i.Attempts, i.Reserved, i.Put.UTC()} })
	return term.PrintRows(console, "items", rows, []string{"ITEM", "BYTES", "ATTEMPTS", "STATE"}, func(r row) []string {
		state := "ready"
		if r.Reserved {
			state = "reserved"
		}
		return []string{r.Name, strconv.Itoa(r.Size), strconv.Itoa(r.Attempts), state}
	})
}
