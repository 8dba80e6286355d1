package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

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
	ack := end("ack RESERVATION", "Remove a reserved item for good", (*recipe.Reservation).Ack)
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

// newReservation makes the directory of a reservation, whose name is its id.
func newReservation() (string, error) {
	root, err := reservations()
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleReservation {
			_ = os.RemoveAll(filepath.Join(root, e.Name())) // the next one tries again
		}
	}
	return os.MkdirTemp(root, "r-") // 0700
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

// queueKeep reserves an item for a process that comes later.
func queueKeep(ctx context.Context, g *globals, path string, o queueOptions) (err error) {
	dir, err := newReservation()
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
