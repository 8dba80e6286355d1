package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
)

// waiting is how a command waits for its turn: without a limit, for a time, or not at
// all.
type waiting struct {
	nonblock     bool
	wait         time.Duration // 0: no limit
	failOnExpiry bool
}

// flags adds the flags of a command that waits; the letters are those of flock(1).
func (w *waiting) flags(f *pflag.FlagSet, nonblock, wait string) {
	f.BoolVarP(&w.nonblock, "nonblock", "n", false, nonblock)
	f.VarP(&waitFlag{w}, "wait", "w", wait+": seconds, or a duration; 0 is --nonblock (default: no limit)")
	f.BoolVar(&w.failOnExpiry, "fail-on-expiry", false, "exit with 69 when the session expires while waiting; by default, wait again in a new session")
}

// attempt bounds the wait of a recipe that cannot try without waiting.
func (w *waiting) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	if !w.nonblock {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, nonblockConnect)
}

// waitFlag takes a number of seconds, as flock does, or a duration.
type waitFlag struct{ *waiting }

func (w *waitFlag) String() string { return "" } // before it is set
func (w *waitFlag) Type() string   { return "duration" }

// Set implements pflag.Value.
func (w *waitFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.ParseFloat(text, 64); nerr == nil && n >= 0 && n < 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a number of seconds and not a duration", text)
	}
	w.wait, w.nonblock = d, w.nonblock || d == 0
	return nil
}

// nonblockConnect bounds the connection of a command that must not wait, and its
// attempt.
const nonblockConnect = 2 * time.Second

// inSessions runs fn in a session. If the session ends while fn waits, fn runs
// again in the next one, because its place in line ended with the session. An error
// with its own exit code is final. The time limit of w includes the connection.
func inSessions(ctx context.Context, g *globals, w waiting, fn func(wait context.Context, s *session.Session, conf *agent.Config) error) error {
	began := time.Now()
	c, conf, err := g.zkConfig()
	if err != nil {
		return err
	}
	m, end, err := runManager(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = end() }()
	wait, cancel := g.patience(ctx, w.wait)
	defer cancel()
	s, err := g.reach(wait, c, w.connect(g.timeout), m.Session)
	for {
		if err != nil {
			return err
		}
		err = fn(wait, s, conf)
		_, final := errors.AsType[*cliError](err)
		_, coded := errors.AsType[codeError](err)
		switch {
		case err == nil, final, coded, ctx.Err() != nil, s.Context().Err() == nil:
			return err
		case w.failOnExpiry:
			return fail(exitUnavailable, err)
		case wait.Err() != nil:
			return fail(exitTemporary, fmt.Errorf("not obtained within %s", time.Since(began).Round(time.Millisecond)))
		}
		g.Say("the session has expired; joining again")
		s, err = m.Session(wait)
	}
}

// connect bounds the first connection.
func (w *waiting) connect(timeout time.Duration) time.Duration {
	switch {
	case timeout > 0:
		return timeout
	case w.nonblock:
		return nonblockConnect
	case w.wait > 0:
		return min(connectTimeout, w.wait)
	}
	return connectTimeout
}

// runManager keeps sessions open until the returned function is called, which waits for
// the end of the last one. A signal does not end them.
func runManager(ctx context.Context, c session.Config) (*session.Manager, func() error, error) {
	m, err := session.New(c)
	if err != nil {
		return nil, nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1) // size 1: Run ends once
	go func() { ended <- m.Run(run) }()
	return m, func() error {
		stop()
		return <-ended
	}, nil
}

// checkChroot says that the chroot does not exist, which every request below it
// would report as a missing znode.
func (g *globals) checkChroot(ctx context.Context, s *session.Session, c session.Config) error {
	if c.Chroot == "" || c.Chroot == "/" {
		return nil
	}
	_, exists, err := s.Exists(ctx, "/")
	if err != nil || exists {
		return nil //nolint:nilerr // the command itself meets the error
	}
	return fail(exitConfig, fmt.Errorf("the chroot %s does not exist", c.Chroot), "create it: zkagent zk create "+c.Chroot+" --zk "+strings.Join(c.Servers, ",")+" --chroot /")
}

// holders names the holders, for the hint of a command that did not get the hold.
func holders(ctx context.Context, s *session.Session, path string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	list, err := standing(ctx, s, path)
	if err != nil {
		return ""
	}
	var names []string
	for _, c := range list {
		if c.Holder {
			names = append(names, fmt.Sprintf("%s since %s", term.Printable(string(c.Data)), c.Since.Format(time.TimeOnly)))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "held by " + strings.Join(names, ", ")
}

// standing lists who holds and who waits, of a lock, an election or a semaphore.
func standing(ctx context.Context, s *session.Session, path string) ([]recipe.Contender, error) {
	names, _, err := s.Children(ctx, path)
	if err != nil || !slices.Contains(names, "leases") {
		return recipe.Contenders(ctx, s, path)
	}
	list, err := recipe.NewSemaphore(s, recipe.SemaphoreConfig{Path: path}).Participants(ctx)
	if err != nil {
		return nil, err
	}
	wait, err := recipe.Contenders(ctx, s, session.JoinPath(path, "locks"))
	for i := range wait {
		wait[i].Holder = false
	}
	return append(list, wait...), err
}

// listStanding prints the standing at the path that the settings and a name mean.
func listStanding(ctx context.Context, g *globals, path func(*agent.Config) (string, error)) error {
	var name string
	var list []recipe.Contender
	err := g.withSession(ctx, func(ctx context.Context, s *session.Session, conf *agent.Config) error {
		var err error
		if name, err = path(conf); err == nil {
			list, err = standing(ctx, s, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	type row struct {
		State  string    `json:"state"`
		Who    string    `json:"who"`
		Since  time.Time `json:"since"`
		Fence  int64     `json:"fence"`
		Znode  string    `json:"znode"`
		Stray  bool      `json:"stray,omitempty"` // a persistent znode: it never leaves by itself
		Shared bool      `json:"shared,omitempty"`
	}
	var rows []row
	for _, c := range list {
		state := "waits"
		if c.Holder {
			state = "holds"
		}
		rows = append(rows, row{state, string(c.Data), c.Since.UTC(), c.Czxid, c.Path, c.Owner == 0, c.Shared})
		if c.Owner == 0 && !g.IsJSON() {
			g.Warnf("%s belongs to no session and never leaves by itself: delete it with \"zkagent zk rm %s\"", c.Path, c.Path)
		}
	}
	if len(rows) == 0 && !g.IsJSON() {
		g.Say("%s has no holder, and nobody waits", name)
	}
	return term.PrintRows(&g.Console, "contenders", rows, []string{"STATE", "WHO", "SINCE", "ZNODE"}, func(r row) []string {
		return []string{r.State, r.Who, r.Since.Local().Format(time.DateTime), r.Znode}
	})
}

// Where recipes stand whose name is not a path.
const (
	locksRoot     = "/zkagent/locks"
	electionsRoot = "/zkagent/elections"
	barriersRoot  = "/zkagent/barriers"
	queuesRoot    = "/zkagent/queues"
	txnsRoot      = "/zkagent/txns"
)

// pathOf is the znode of a name: a path is itself, a name stands below root.
func pathOf(root, name string) (string, error) {
	path := name
	if !strings.HasPrefix(name, "/") {
		path = root + "/" + name
	}
	return path, fail(exitUsage, session.ValidatePath(path))
}

// contenderData returns the data of our znode in a line: host, process and the
// user's description.
func contenderData(describe string) []byte {
	data := fmt.Appendf(whoAmI(), ":%d", os.Getpid())
	if describe != "" {
		data = append(append(data, ' '), describe...)
	}
	return data
}

// whoAmI returns the data of our znodes, for people who look at them.
func whoAmI() []byte {
	host, _ := os.Hostname()
	return []byte(cmp.Or(host, "unknown"))
}
