package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

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

// contenderData returns the data of our znode in a line.
func contenderData(describe string) []byte {
	data := fmt.Appendf(whoAmI(), ":%d", os.Getpid())
	if describe != "" {
		data = append(append(data, ' '), describe...)
	}
	return data
}

func whoAmI() []byte {
	host, _ := os.Hostname()
	return []byte(cmp.Or(host, "unknown"))
}

// Exit codes of a shell, for commands that could not be run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// heldCommand is a hold that a command runs under: a lock, a permit or a term.
type heldCommand struct {
	what  string // for messages: "lock /locks/x"
	ctx   context.Context
	s     *session.Session
	fence int64
	env   []string
	// killAfter is the time between the signal that ends the command and KILL; 0:
	// the default.
	killAfter time.Duration
}

// killAfter is how long a command may take to end after a signal.
const killAfter = 10 * time.Second

// runHeld runs the command while the hold lasts. It returns an error with the exit
// code, or nil for 0. The command owns the terminal and gets the signals that this
// process gets. A guard process ends the command when the lease runs out, even if
// this process has died. So the command is gone before another process can get the
// hold.
func runHeld(ctx context.Context, g *globals, h heldCommand, args []string) error {
	fence := strconv.FormatInt(h.fence, 10)
	env := append(os.Environ(), "ZKAGENT_FENCE="+fence, "ZKAGENT_TERM="+fence, "ZKAGENT_LOCK_EXPIRES="+h.s.Lease().UTC().Format(time.RFC3339Nano))
	// The lease leaves a third of the timeout; the child must be gone well within it.
	command := proc.Command{Args: args, Env: append(env, h.env...), Grace: min(proc.DefaultGrace, h.s.Timeout()/5)}
	return attached(ctx, g, h, proc.Guard{Lease: h.s.Lease, Every: h.s.Timeout() / 12}, command)
}

// attached runs the command of a hold on our terminal until it ends or the context of
// the hold does. From here on, signals go to the command.
func attached(ctx context.Context, g *globals, h heldCommand, guard proc.Guard, command proc.Command) error {
	signals := make(chan os.Signal, 16) // size 16: a person presses no more keys meanwhile
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(h.ctx, func() {
		if cause := context.Cause(h.ctx); !isSignal(cause) {
			cancel(cause)
		}
	})
	defer stop()
	dir, err := os.Getwd()
	command.Dir = dir
	if err != nil {
		command.Dir = "/"
	}
	file := func(stream any, otherwise *os.File) *os.File { // in tests, streams are no files
		if f, ok := term.File(stream); ok {
			return f
		}
		return otherwise
	}
	streams := proc.Streams{
		In: file(g.In, nil), Out: file(g.Out, os.Stdout), Err: file(g.Err, os.Stderr),
		Terminal: true, Signals: signals, KillAfter: cmp.Or(h.killAfter, killAfter),
	}
	if h.s == nil && g.IsJSON() {
		streams.Out = streams.Err // standard output is for the document
	}
	r, err := guard.RunAttached(own, command, streams)
	if h.s == nil && own.Err() != nil {
		return context.Cause(own)
	}
	return childError(own, g, h, command.Args, r, err)
}

// freeLease is the longest time that a command without a hold outlives a killed
// zkagent.
const freeLease = time.Hour

// runFree runs a command like runHeld, but without a hold. The command ends by
// itself or with ctx. Signals go to the command.
func runFree(ctx context.Context, g *globals, args []string) error {
	guard := proc.Guard{Lease: func() time.Time { return time.Now().Add(freeLease) }, Every: freeLease / 12}
	return attached(ctx, g, heldCommand{ctx: ctx}, guard, proc.Command{Args: args, Env: os.Environ(), Grace: proc.DefaultGrace})
}

// passedOn lists the signals that we pass to a command. CONT means that the shell
// has continued us; the command must continue, too.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

func childError(ctx context.Context, g *globals, h heldCommand, args []string, r proc.Result, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		return nil
	case notStarted(args[0], err) != nil:
		return notStarted(args[0], err)
	case errors.Is(err, proc.ErrLease) || h.ctx.Err() != nil && cause != nil:
		// Print it before the release, which may take a while.
		return codeError(g.notify(&cliError{
			code: exitLost, err: fmt.Errorf("%s was lost, %s was ended: %w", h.what, args[0], cmp.Or(context.Cause(h.ctx), err)),
			hints: []string{"another client may hold it now; the command's changes stay"},
		}))
	}
	exit, ok := errors.AsType[*proc.ExitError](err)
	switch {
	case !ok:
		return fail(exitNotExecutable, err)
	case r.Signal != "":
		if s, perr := proc.ParseSignal(r.Signal); perr == nil {
			return codeError(exitSignal + int(s))
		}
	case exit.Result.Code > 0:
		return codeError(exit.Result.Code)
	}
	return fail(exitFailed, err)
}

// notStarted is the error, as of a shell, of a command that could not start; else nil.
func notStarted(name string, err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return failf(exitNotFound, "%s: command not found", name)
	case errors.Is(err, fs.ErrPermission):
		return failf(exitNotExecutable, "%s: cannot be executed", name)
	}
	return nil
}

func isSignal(err error) bool {
	_, ok := errors.AsType[signalError](err)
	return ok
}

// commandAfter splits "NAME -- CMD ARG..." at the dashes.
func commandAfter(args []string, dash int) ([]string, []string) {
	if dash < 0 {
		return args, nil
	}
	return args[:dash], args[dash:]
}

type execOptions struct {
	prefixes []string
	allowed  []string // variables that could run code
	pristine bool
	upcase   bool
	sanitize bool
}

func newExecCommand(g *globals) *cobra.Command {
	var o execOptions
	c := &cobra.Command{
		Use:   "exec --prefix CONFIG[/KEY]... -- CMD [ARG...]",
		Short: "Run a command with environment variables from keys",
		Long: `Read keys and run a command that has them as environment variables: KEY=value
for each key below a prefix. The part of the path after the prefix is the name. CONFIG is a
config block of the settings, or a znode path that is a config tree. Of several
prefixes that give one variable, the last wins.

zkagent becomes the command: signals, input and exit code are the command's own.
The command keeps its variables when a key changes. An exec block of the agent's
settings restarts its program on a change, or sends it a signal.`,
		Example: "  zkagent exec --prefix web/env --upcase -- ./server\n  zkagent exec --prefix /config/web --pristine --sanitize -- env",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			before, command := commandAfter(args, c.ArgsLenAtDash())
			if len(before) > 0 || len(command) == 0 {
				return usagef("exec takes \"--\" and a command")
			}
			if len(o.prefixes) == 0 {
				return usagef("exec needs --prefix CONFIG or --prefix CONFIG/KEY")
			}
			return execCommand(c.Context(), g, command, o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.prefixes, "prefix", nil, "config, or config and key, whose keys become variables (required); may be given more than once")
	f.StringArrayVar(&o.allowed, "allow-env", nil, "variable that a key may set although it can run code (PATH, LD_PRELOAD, BASH_ENV, ...); may be given more than once")
	f.BoolVar(&o.pristine, "pristine", false, "start with an empty environment; by default the command inherits this one")
	f.BoolVar(&o.upcase, "upcase", false, "write names in upper case; by default as the keys have them")
	f.BoolVar(&o.sanitize, "sanitize", false, "in names, replace everything but letters, digits and _ by _; by default a name with = is an error")
	return c
}

func execCommand(ctx context.Context, g *globals, command []string, o execOptions) error {
	env := []string{}
	if !o.pristine {
		env = os.Environ()
	}
	err := g.withSession(ctx, func(ctx context.Context, s *session.Session, c *agent.Config) error {
		for _, p := range o.prefixes {
			tree, prefix, err := execTree(ctx, g, s, c, p)
			if err != nil {
				return err
			}
			vars, err := o.variables(tree, prefix)
			if err != nil {
				return err
			}
			for _, v := range vars {
				name, _, _ := strings.Cut(v, "=")
				env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
				env = append(env, v)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return cmp.Or(notStarted(command[0], err), err)
	}
	err = syscall.Exec(path, command, env) //nolint:gosec // the command of the command line; it returns only on failure
	return fail(exitNotExecutable, fmt.Errorf("execute %s: %w", path, err))
}

func execTree(ctx context.Context, g *globals, s *session.Session, c *agent.Config, prefix string) (*view.Tree, string, error) {
	cfg, key := config.Config{Name: prefix, Path: strings.TrimSuffix(prefix, "/")}, ""
	if !strings.HasPrefix(prefix, "/") {
		var name string
		name, key, _ = strings.Cut(strings.TrimSuffix(prefix, "/"), "/")
		i := slices.Index(configNames(c), name)
		if i < 0 {
			return nil, "", fail(exitUsage, fmt.Errorf("--prefix %s: the settings have no config %q", prefix, name), "name the settings by --config, or give a path as in /config/web")
		}
		cfg = c.Configs[i]
	}
	v, err := gatherSources(ctx, g, s, view.View{}, followers(&agent.Config{Configs: []config.Config{cfg}}, allSources))
	if err != nil {
		return nil, "", fmt.Errorf("--prefix %s: %w", prefix, err)
	}
	tree, _ := v.Tree(cfg.Name)
	return tree, key, nil
}

var notVariable = regexp.MustCompile(`[^A-Za-z0-9_]`)

func (o execOptions) variables(tree *view.Tree, prefix string) ([]string, error) {
	var list []string
	var bad error
	tree.Walk(prefix, func(path string, k view.Key) bool {
		below := strings.TrimPrefix(strings.TrimPrefix(path, prefix), "/")
		name := cmp.Or(below, path[strings.LastIndexByte(path, '/')+1:]) // the prefix may be a key itself
		if o.sanitize {
			name = notVariable.ReplaceAllString(name, "_")
		}
		if o.upcase {
			name = strings.ToUpper(name)
		}
		switch {
		case strings.ContainsAny(name, "=\x00"):
			bad = fmt.Errorf("key %q cannot be the name of a variable; --sanitize makes it one", path)
		case proc.RunsCode(name) && !slices.Contains(o.allowed, name):
			bad = fmt.Errorf("key %q sets %s, which lets the writer of the key run code; --allow-env %s permits it", path, name, name)
		case strings.ContainsRune(string(k.Value), 0):
			bad = fmt.Errorf("the value of key %q holds a zero byte, which no variable can", path)
		}
		list = append(list, name+"="+string(k.Value))
		return bad == nil
	})
	return list, bad
}
