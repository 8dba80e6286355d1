package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/doctor"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

const defaultConfig = "/etc/zkagent"

const connectTimeout = 10 * time.Second

// configPaths returns the settings that the command line or the environment names.
func (g *globals) configPaths() []string {
	if len(g.config) > 0 {
		return g.config
	}
	if env := os.Getenv("ZKAGENT_CONFIG"); env != "" {
		return strings.Split(env, ":")
	}
	return []string{defaultConfig}
}

func (g *globals) configNamed() bool { return len(g.config) > 0 || os.Getenv("ZKAGENT_CONFIG") != "" }

const configHint = "--config names the settings, a file or a directory"

func (g *globals) loadSettings(opts settings.Options) (*settings.Settings, error) {
	return g.load(opts, !g.Quiet)
}

// load loads the settings and prints their errors, and their warnings if asked to.
func (g *globals) load(opts settings.Options, warnings bool) (*settings.Settings, error) {
	if opts.Env == nil {
		opts.Env = unitEnv
	}
	s, err := settings.Load(g.configPaths(), opts)
	s.Config.Logger = g.logger()
	if err != nil && len(s.Diagnostics) == 0 {
		return nil, fail(exitConfig, err, configHint)
	}
	if len(s.Diagnostics) > 0 && (warnings || err != nil) {
		g.shown = true
		width := uint(0)
		if term.IsTerminal(g.Err) {
			width = 100
		}
		if werr := s.Write(g.Err, width, g.UseColor(g.Err)); werr != nil {
			return nil, werr
		}
	}
	return s, fail(exitConfig, err)
}

// zkConfig returns how to reach ZooKeeper: --zk, $ZKAGENT_ZK or the settings. The
// settings are empty, with no Files, if the user named none and the default location has
// none, or is not needed because the ensemble is named.
func (g *globals) zkConfig() (session.Config, *agent.Config, error) {
	conf := &agent.Config{}
	if g.configNamed() || exists(defaultConfig) && g.zk == "" && os.Getenv("ZKAGENT_ZK") == "" {
		s, err := g.load(settings.Options{}, false)
		if err != nil {
			return session.Config{}, nil, err
		}
		conf = &s.Config
	}
	c, err := g.zkConfigOf(conf)
	return c, conf, err
}

// zkConfigOf is zkConfig with loaded settings.
func (g *globals) zkConfigOf(conf *agent.Config) (session.Config, error) {
	c := conf.ZooKeeper
	c.StateDir = ""
	if err := g.overrideZK(&c); err != nil {
		return c, err
	}
	if len(c.Servers) == 0 {
		return c, fail(exitUsage, errors.New("no ZooKeeper named"), "name it by --zk host:port, by $ZKAGENT_ZK, or by settings with --config")
	}
	c.Logger = g.logger()
	host, _ := os.Hostname()
	c.Identity = fmt.Sprintf("%s:%d", host, os.Getpid())
	return c, nil
}

func (g *globals) overrideZK(c *session.Config) error {
	zk := g.zk
	if zk == "" && len(c.Servers) == 0 || zk == "" && len(g.config) == 0 && os.Getenv("ZKAGENT_ZK") != "" {
		zk = os.Getenv("ZKAGENT_ZK")
	}
	if zk != "" {
		servers, chroot, err := session.ParseServers(zk)
		if err != nil {
			return fail(exitUsage, fmt.Errorf("--zk: %w", err))
		}
		c.Servers, c.Chroot = servers, chroot
	}
	if g.chroot != "" {
		c.Chroot = strings.TrimSuffix(g.chroot, "/")
		if err := session.ValidatePath(g.chroot); err != nil {
			return fail(exitUsage, fmt.Errorf("--chroot: %w", err))
		}
	}
	if g.session > 0 {
		c.Timeout = g.session
	}
	if auth := os.Getenv("ZKAGENT_AUTH"); auth != "" {
		scheme, data, ok := strings.Cut(auth, ":")
		user, password, pair := strings.Cut(data, ":")
		switch {
		case !ok || scheme == "sasl" && !pair:
			return usagef("$ZKAGENT_AUTH must be scheme:credential, as in digest:user:password or sasl:user:password")
		case scheme == "sasl":
			c.SASL = session.DigestMD5(user, password)
		default:
			c.Auth = append(c.Auth, session.Auth{Scheme: scheme, Data: []byte(data)})
		}
	}
	return nil
}

// reach waits for a session, within a limit, and says so. An error may come with a session
// whose chroot does not exist.
func (g *globals) reach(ctx context.Context, c session.Config, limit time.Duration, open func(context.Context) (*session.Session, error)) (*session.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	servers := strings.Join(c.Servers, ", ")
	defer g.awaiting("waiting for ZooKeeper at %s", servers)()
	s, err := open(ctx)
	switch {
	case err == nil:
		if c.Chroot == "" || c.Chroot == "/" {
			return s, nil
		}
		// Every request below a missing chroot would report a missing znode.
		_, exists, err := s.Exists(ctx, "/")
		if err != nil || exists {
			return s, nil // the command itself meets the error
		}
		return s, fail(exitConfig, fmt.Errorf("the chroot %s does not exist", c.Chroot), "create it: zkagent zk create "+c.Chroot+" --zk "+strings.Join(c.Servers, ",")+" --chroot /")
	case errors.Is(err, session.ErrAuthFailed), errors.Is(err, session.ErrTLS), isSignal(context.Cause(ctx)):
		return nil, err
	}
	return nil, fail(exitUnavailable, fmt.Errorf("cannot reach ZooKeeper at %s: %w (gave up after %s)", servers, doctor.Cause(err), limit),
		"is ZooKeeper running there? \"zkagent doctor\" asks each server")
}

// withSession runs fn with a session and closes it afterwards. The context of fn has
// the time limit of the command; the one outside has none.
func (g *globals) withSession(ctx context.Context, fn func(context.Context, *session.Session, *agent.Config) error) error {
	c, conf, err := g.zkConfig()
	if err != nil {
		return err
	}
	return g.inSession(ctx, c, func(ctx context.Context, s *session.Session) error { return fn(ctx, s, conf) })
}

// inSession is withSession for a command that has loaded its settings.
func (g *globals) inSession(ctx context.Context, c session.Config, fn func(context.Context, *session.Session) error) error {
	s, err := g.reach(ctx, c, cmp.Or(g.timeout, connectTimeout), func(ctx context.Context) (*session.Session, error) { return session.Dial(ctx, c) })
	if err != nil {
		if s != nil {
			_ = s.Close() // report the error of the chroot
		}
		return err
	}
	ctx, cancel := g.patience(ctx, 0)
	defer cancel()
	return cmp.Or(fn(ctx, s), s.Close())
}

// awaiting says what the command waits for, unless the returned function is called
// within a second.
func (g *globals) awaiting(format string, args ...any) func() {
	return later(time.Second, func() { g.Say(format, args...) })
}

// later calls fn after a time, unless the returned function is called before. That one
// waits for an fn that runs: two of them must not print at once.
func later(d time.Duration, fn func()) func() {
	done := make(chan struct{})
	timer := time.AfterFunc(d, func() {
		defer close(done)
		fn()
	})
	return sync.OnceFunc(func() {
		if !timer.Stop() {
			<-done
		}
	})
}

// oneShot bounds a command that does not wait for others.
const oneShot = 30 * time.Second

// waits lists the commands that wait for others or for long work. Only --timeout
// bounds them.
var waits = []string{
	"run", "dev", "events", "hooks run", "reload", "leave", "upgrade", "lock", "elect", "barrier", "queue", "txn", "watch", "haproxy",
	"config publish", "config edit", "config rollback", "config import", "config export", "config convert", "config gc", "config plan",
	"rollout watch", "rollout retry", "rollout undo", "rollout rollback",
}

// waitsForOthers reports whether the command is one of waits, or below one.
func waitsForOthers(c *cobra.Command) bool {
	path := strings.TrimPrefix(c.CommandPath(), "zkagent ")
	return slices.ContainsFunc(waits, func(w string) bool { return path == w || strings.HasPrefix(path, w+" ") })
}

// patienceError is the cause of a context whose time is up.
type patienceError time.Duration

func (e patienceError) Error() string { return fmt.Sprintf("not done within %s", time.Duration(e)) }
func (e patienceError) Unwrap() error { return context.DeadlineExceeded }

// patience bounds a wait: by wait if it is set, else by --timeout. A command that
// does not wait for others ends after oneShot in any case.
func (g *globals) patience(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	wait = cmp.Or(wait, g.timeout, g.bound)
	if wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, wait, patienceError(wait))
}

// logger logs to standard error with --verbose, and nowhere without.
func (g *globals) logger() *slog.Logger {
	if !g.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(g.Err, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// readInput reads a file, or standard input for "-".
func (g *globals) readInput(name string) ([]byte, error) {
	f, err := g.openInput(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func (g *globals) openInput(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(g.In), nil
	}
	return os.Open(name)
}

// unitCredentials is where systemd keeps the credentials of the running unit.
const unitCredentials = "/run/credentials/zkagent.service"

// unitEnv is [os.LookupEnv], but a command outside of the unit also sees the
// credentials of the unit, if its user may read them. So "zkagent doctor" and the
// fleet commands work with the settings of the agent.
func unitEnv(name string) (string, bool) {
	v, ok := os.LookupEnv(name)
	if ok || name != "CREDENTIALS_DIRECTORY" {
		return v, ok
	}
	if _, err := os.ReadDir(unitCredentials); err != nil {
		return "", false
	}
	return unitCredentials, true
}

// confirm asks a yes-or-no question. Any answer but yes is an error, and so is a question
// without a terminal and without --yes.
func (g *globals) confirm(ctx context.Context, question string) error {
	if err := g.mayAsk(question); err != nil || g.yes {
		return err
	}
	answer, err := g.ask(ctx, question+" [y/N] ")
	if answer = strings.ToLower(answer); err == nil && answer != "y" && answer != "yes" {
		err = failf(exitFailed, "not confirmed, nothing was changed")
	}
	return err
}

// mayAsk returns an error without --yes and without a terminal to ask on.
func (g *globals) mayAsk(question string) error {
	if g.yes || term.IsTerminal(g.In) {
		return nil
	}
	return fail(exitUsage, fmt.Errorf("confirmation needed, but stdin is not a terminal; pass --yes to %s", strings.TrimSuffix(question, "?")))
}

// ask returns the typed line without surrounding spaces; it is empty at the end of the input.
func (g *globals) ask(ctx context.Context, prompt string) (string, error) {
	_, _ = io.WriteString(g.Err, prompt)
	var line strings.Builder
	for char := make([]byte, 1); ; {
		if err := g.awaitInput(ctx); err != nil {
			_, _ = io.WriteString(g.Err, "\n")
			return "", err
		}
		n, err := g.In.Read(char)
		if n == 0 || char[0] == '\n' {
			if errors.Is(err, io.EOF) {
				_, _ = io.WriteString(g.Err, "\n")
				err = nil
			}
			return strings.TrimSpace(line.String()), err
		}
		line.WriteByte(char[0])
	}
}

// inputPoll is how often a waiting question checks whether ctx has ended.
const inputPoll = 100 * time.Millisecond

// awaitInput waits until there is input or ctx ends. Without it, the system call
// that reads the terminal would not end with ctx.
func (g *globals) awaitInput(ctx context.Context) error {
	f, ok := g.In.(*os.File)
	for ok && ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(inputPoll.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for an answer: %w", err)
		}
		if err == nil && n > 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}
