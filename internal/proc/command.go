package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Defaults of a [Command].
const (
	DefaultGrace       = 5 * time.Second
	DefaultOutputLimit = 64 << 10
	// pipeWait bounds the wait for the end of the output after the command
	// and its group are gone: a process that left the group may hold the pipe.
	pipeWait = 500 * time.Millisecond
)

// Command is one command to run. The zero value of an optional field means
// its default.
type Command struct {
	// Args is the program and its arguments. There is no shell.
	Args []string
	// Env is added to the clean environment, as "NAME=value".
	Env []string
	// Dir is the working directory; empty means "/".
	Dir string
	// Stdin is what the command reads from its standard input.
	Stdin []byte
	// Timeout bounds the run; 0 means that only the context does.
	Timeout time.Duration
	// Stop is the signal that ends the command; 0 means TERM.
	Stop syscall.Signal
	// Grace is the time between Stop and KILL; 0 means DefaultGrace.
	Grace time.Duration
	// OutputLimit is how many bytes of the output's end are kept; 0 means
	// DefaultOutputLimit.
	OutputLimit int
	// Tee, when set, receives the output as it comes; the end is kept all
	// the same. It must not block.
	Tee io.Writer
	// Preview, when set, are files that the command sees in place, and nobody else; see
	// [FindPreview].
	Preview *Preview
	// Started, when set, is called with the process id after the start.
	Started func(pid int)
}

// Result is how a command ended. It is also filled in when the command failed.
type Result struct {
	Code      int           `json:"code"`             // exit code; -1 when it did not exit by itself
	Signal    string        `json:"signal,omitempty"` // signal that ended it, such as "SIGTERM"
	TimedOut  bool          `json:"timed_out,omitempty"`
	Output    string        `json:"output,omitempty"` // end of standard output and standard error together
	Truncated int64         `json:"truncated,omitempty"`
	Took      time.Duration `json:"took"`
}

// ExitError says that a command ran and did not succeed. Its text names the
// program, never its arguments or environment, for those may hold secrets.
type ExitError struct {
	Program string
	Result  Result
	// Cause is why it was ended from outside: the timeout or the context's cause.
	Cause error
}

// Error implements error.
func (e *ExitError) Error() string {
	var b strings.Builder
	b.WriteString(e.Program)
	b.WriteString(": ")
	switch {
	case e.Result.TimedOut:
		fmt.Fprintf(&b, "timed out after %s", e.Result.Took.Round(time.Millisecond))
	case e.Cause != nil:
		fmt.Fprintf(&b, "ended: %v", e.Cause)
	case e.Result.Signal != "":
		b.WriteString("killed by " + e.Result.Signal)
	default:
		fmt.Fprintf(&b, "exit status %d", e.Result.Code)
	}
	last := strings.TrimSpace(e.Result.Output)
	if n := len(last) - 400; n > 0 {
		last = last[n:]
		if i := strings.IndexByte(last, '\n'); i >= 0 && i < len(last)-1 {
			last = last[i+1:]
		}
	}
	if last != "" {
		b.WriteString(": " + strings.ToValidUTF8(strings.ReplaceAll(last, "\n", "; "), "?"))
	}
	return b.String()
}

// ExitStatus is the status that the command ended with by itself; 0: it did not.
func (e *ExitError) ExitStatus() int { return e.Result.Code }

// Unwrap gives the cause.
func (e *ExitError) Unwrap() error { return e.Cause }

func program(args []string) string {
	if len(args) == 0 {
		return "command"
	}
	return filepath.Base(args[0])
}

// ParseSignal returns the signal of a name such as "SIGHUP" or "HUP".
func ParseSignal(name string) (syscall.Signal, error) {
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("unknown signal %q", name)
}

// defaultPath is used when this process has no PATH of its own.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// CleanEnv is the environment of a command: PATH, HOME and LANG of this
// process, then the given variables. Nothing else is passed on: no
// NOTIFY_SOCKET, no credentials directory, no secrets.
func CleanEnv(extra []string) []string {
	return append([]string{
		"PATH=" + cmp.Or(os.Getenv("PATH"), defaultPath), "HOME=" + cmp.Or(os.Getenv("HOME"), "/"), "LANG=" + cmp.Or(os.Getenv("LANG"), "C.UTF-8"),
	}, extra...)
}

// codeVariables make a program run code, or trust another party: loaders, shells
// and interpreters read them. A * stands for any ending.
var codeVariables = []string{
	"LD_*", "DYLD_*", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN", "MALLOC_*", "TZDIR",
	"PATH", "IFS", "ENV", "BASH*", "SHELLOPTS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "CDPATH", "FPATH", "ZDOTDIR", "SHELL", "HOME", "HISTFILE", "INPUTRC",
	"EDITOR", "VISUAL", "FCEDIT", "PAGER", "MANPAGER", "LESS*", "BROWSER", "TERMINFO*", "TERMCAP", "VIM*", "EXINIT", "EMACS*", "SUDO_*", "TAR_OPTIONS", "GREP_OPTIONS",
	"GIT_*", "SSH_*", "RSYNC_*", "CVS_*", "SVN_*", "HGRCPATH", "HGMERGE",
	"PYTHON*", "PIP_*", "VIRTUAL_ENV", "PERL*", "RUBY*", "GEM_*", "BUNDLE_*", "NODE_*", "NPM_*", "npm_*", "LUA_*", "PHP_INI*", "PHPRC", "R_*", "TCL*", "ERL_*",
	"JAVA_*", "_JAVA_*", "JDK_*", "JVM*", "CLIENT_JVMFLAGS", "SERVER_JVMFLAGS", "CLASSPATH", "MAVEN_*", "GRADLE_*", "CATALINA_*", "DOTNET_*", "CORECLR_*", "COR_*", "AWKPATH", "AWKLIBPATH",
	"MAKEFLAGS", "MAKEFILES", "GOFLAGS", "GODEBUG", "GOENV", "GOROOT", "GOPATH", "GOPROXY", "GOTOOLCHAIN", "CARGO_*", "RUSTC*", "RUSTUP_*",
	"OPENSSL_*", "SSL_CERT_*", "SSLKEYLOGFILE", "KRB5*", "CURL_*", "WGETRC", "NETRC", "GNUPGHOME", "KUBECONFIG", "DOCKER_*", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "ANSIBLE_*",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
	"XDG_*", "SYSTEMD_*", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "ZKAGENT_*",
}

// RunsCode reports whether a variable can make a program run code that its writer
// chose.
func RunsCode(name string) bool {
	return slices.ContainsFunc(codeVariables, func(v string) bool {
		prefix, wild := strings.CutSuffix(v, "*")
		return name == v || wild && strings.HasPrefix(name, prefix)
	})
}

// ErrTimeout is the cause of a command that was ended by its timeout.
var ErrTimeout = errors.New("timeout")

// ErrUnsupported says that this system lacks what keeps a command from outliving
// its lease.
var ErrUnsupported = errors.New("zkagent runs commands only on Linux")

// Run runs the command and waits for it. The error is an [ExitError] when the
// command ran and did not exit with 0; the Result is valid in either case.
// When ctx ends or the timeout passes, the whole group gets TERM and after
// the grace period KILL. Whatever remains of the group when the command
// itself has ended is killed.
func Run(ctx context.Context, c Command) (Result, error) {
	if err := c.refused(ctx); err != nil {
		return Result{Code: -1}, err
	}
	way := NoPreview
	if c.Preview != nil {
		var why error
		if way, why = FindPreview(); way == NoPreview {
			return Result{Code: -1}, &PreviewError{why.Error()}
		}
	}
	return runIn(ctx, c, way)
}

// runIn is Run in a preview of the given way, or in none.
func runIn(ctx context.Context, c Command, way PreviewWay) (Result, error) {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	if way != NoPreview {
		return runPreview(ctx, c, way)
	}
	began := time.Now()
	cmd := build(c)
	out, err := start(cmd, c)
	if err != nil {
		return Result{Code: -1, Took: time.Since(began)}, fmt.Errorf("start %s: %w", program(c.Args), plain(err))
	}
	r, cause := c.wait(ctx, cmd)
	r.Took = time.Since(began)
	out.finish(&r)
	return r, verdict(c, &r, cause)
}

// refused says why the command is not started; nil: it may be.
func (c Command) refused(ctx context.Context) error {
	if len(c.Args) == 0 {
		return errors.New("run command: empty argument list")
	}
	if !supported {
		return ErrUnsupported
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("run %s: %w", program(c.Args), err)
	}
	return nil
}

// limited is a context that also ends with the timeout of the command.
func (c Command) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
}

// verdict makes the error of a run that did not succeed.
func verdict(c Command, r *Result, cause error) error {
	if r.Code == 0 && cause == nil {
		return nil
	}
	r.TimedOut = errors.Is(cause, ErrTimeout)
	return &ExitError{Program: program(c.Args), Result: *r, Cause: cause}
}

func (c Command) grace() time.Duration { return cmp.Or(max(c.Grace, 0), DefaultGrace) }

// build makes the exec.Cmd. The context is not given to it: it would kill the
// leader alone, and we end the group.
func build(c Command) *exec.Cmd {
	cmd := &exec.Cmd{Path: c.Args[0], Args: c.Args, Env: CleanEnv(c.Env), Dir: cmp.Or(c.Dir, "/"), SysProcAttr: groupAttr()}
	if p, err := exec.LookPath(c.Args[0]); err == nil {
		cmd.Path = p
	} else if !errors.Is(err, exec.ErrDot) {
		cmd.Err = err
	}
	return cmd
}

// output keeps the last bytes of what a command prints.
type output struct {
	r     *os.File
	tee   io.Writer // nil: none
	limit int
	buf   []byte
	lost  int64
	wg    sync.WaitGroup // of the goroutine that fills it
}

// start starts the command with its output going through one pipe of ours,
// so that waiting for the command never waits for a grandchild that holds it.
func start(cmd *exec.Cmd, c Command) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	in, err := stdin(c.Stdin)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	defer in.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, w, w
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	o := &output{r: r, tee: c.Tee, limit: cmp.Or(max(c.OutputLimit, 0), DefaultOutputLimit)}
	o.wg.Go(func() { _, _ = io.Copy(o, r) })
	return o, nil
}

// finish takes the output into the result. It waits for its end, but not for a process
// that left the group and still holds the pipe.
func (o *output) finish(into *Result) {
	if o == nil {
		return
	}
	_ = o.r.SetReadDeadline(time.Now().Add(pipeWait))
	o.wg.Wait()
	_ = o.r.Close()
	o.cut()
	into.Output, into.Truncated = string(o.buf), o.lost
	if o.lost > 0 {
		into.Output = fmt.Sprintf("[%d bytes cut]\n%s", o.lost, o.buf)
	}
}

// Write implements io.Writer; it never fails.
func (o *output) Write(p []byte) (int, error) {
	if o.tee != nil {
		_, _ = o.tee.Write(p)
	}
	// Twice the limit is kept before cutting, so that a flood of small
	// writes does not move the whole buffer each time.
	if o.buf = append(o.buf, p...); len(o.buf) > 2*o.limit {
		o.cut()
	}
	return len(p), nil
}

func (o *output) cut() {
	if over := len(o.buf) - o.limit; over > 0 {
		o.lost += int64(over)
		o.buf = append(o.buf[:0], o.buf[over:]...)
	}
}

// stdin is a file with the data: an unlinked memory file, so that a command
// which never reads cannot block anybody.
func stdin(data []byte) (*os.File, error) {
	if len(data) == 0 {
		return os.Open(os.DevNull)
	}
	f, err := newMemFile("zkagent-stdin")
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// wait waits for the command's end or ends it; it returns the cause when it ended it. The
// group is gone before the leader is reaped.
func (c Command) wait(ctx context.Context, cmd *exec.Cmd) (Result, error) {
	pid := cmd.Process.Pid
	if c.Started != nil {
		c.Started(pid)
	}
	exited := exitOf(pid)
	var cause error
	select {
	case <-exited:
	case <-ctx.Done():
		cause = context.Cause(ctx)
		endGroup(pid, c.Stop, c.grace(), exited)
	}
	signalGroup(pid, syscall.SIGKILL)
	_ = cmd.Wait()
	return result(cmd.ProcessState), cause
}

// exitOf returns a channel that is closed when the process has ended. It is not reaped.
func exitOf(pid int) <-chan struct{} {
	exited := make(chan struct{})
	go func() {
		waitExited(pid)
		close(exited)
	}()
	return exited
}

// result takes exit code and signal from the process state.
func result(ps *os.ProcessState) Result {
	if ps == nil {
		return Result{Code: -1}
	}
	r := Result{Code: ps.ExitCode()}
	if ws, ok := ps.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Signal = cmp.Or(unix.SignalName(ws.Signal()), fmt.Sprintf("signal %d", ws.Signal()))
	}
	return r
}

// plain strips the path of an exec error that repeats the command line.
func plain(err error) error {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
