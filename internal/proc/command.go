package proc

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	if last := lastLines(e.Result.Output, 400); last != "" {
		b.WriteString(": " + last)
	}
	return b.String()
}

// ExitStatus is the status that the command ended with by itself; 0: it did not.
func (e *ExitError) ExitStatus() int { return e.Result.Code }

// Unwrap gives the cause.
func (e *ExitError) Unwrap() error { return e.Cause }

// lastLines is the end of the output on one line, at most n bytes.
func lastLines(out string, n int) string {
	out = strings.TrimSpace(out)
	if len(out) > n {
		out = out[len(out)-n:]
		if i := strings.IndexByte(out, '\n'); i >= 0 && i < len(out)-1 {
			out = out[i+1:]
		}
	}
	return strings.ToValidUTF8(strings.ReplaceAll(out, "\n", "; "), "?")
}

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
