package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// maxOutput bounds the stored output of a check, in bytes.
const maxOutput = 4 << 10

// Check finds out whether a service works. Run returns nil if it works, and in both
// cases an output to show. It returns soon after ctx ends. Calls do not overlap.
type Check interface {
	Run(ctx context.Context) (output string, err error)
}

// NewCheck makes the check that c describes. It does no I/O. Checks of kind ttl
// have no Check, because the service reports their results. run runs the commands
// of exec checks; nil means a plain runner.
func NewCheck(c CheckConfig, run RunFunc) (Check, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch c.Kind {
	case CheckHTTP:
		return newHTTPCheck(c)
	case CheckTCP:
		return tcpCheck{address: c.Address}, nil
	case CheckGRPC:
		return grpcCheck{c}, nil
	case CheckPrometheus:
		return newPrometheusCheck(c), nil
	case CheckExec:
		if run == nil {
			run = plainRun
		}
		return execCheck{args: c.Command, run: run}, nil
	}
	return nil, fmt.Errorf("checks of kind %q do not run", c.Kind)
}

// clip bounds output and makes it printable text.
func clip(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > maxOutput {
		s = strings.ToValidUTF8(s[:maxOutput], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

type tcpCheck struct{ address string }

func (c tcpCheck) Run(ctx context.Context) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	_ = conn.Close()
	return "connected to " + c.address, nil
}

// execCheck runs a command. Only exit code 0 is good; code 1, the "warning" of
// monitoring plugins, is not.
type execCheck struct {
	args []string
	run  RunFunc
}

func (c execCheck) Run(ctx context.Context) (string, error) {
	output, code, err := c.run(ctx, c.args, maxOutput)
	switch {
	case ctx.Err() != nil:
		return output, fmt.Errorf("command %s: not done in time", c.args[0])
	case err != nil:
		return output, fmt.Errorf("run %s: %w", c.args[0], err)
	case code != 0:
		return output, &exitError{c.args[0], code}
	}
	return output, nil
}

type exitError struct {
	program string
	code    int
}

func (e *exitError) Error() string {
	return fmt.Sprintf("command %s: exit status %d", e.program, e.code)
}

// plainRun is the default runner. It starts the command in its own process group
// and kills the whole group at the end.
func plainRun(ctx context.Context, args []string, limit int) (string, int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204 -- the command is from the settings
	out := &head{limit: limit}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the command ended with 0, but a child of it keeps the output open
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out.data), exit.ExitCode(), nil
	}
	return string(out.data), 0, err
}

// head keeps the first limit bytes. It needs no lock: os/exec copies both streams
// to the same writer in one goroutine.
type head struct {
	data  []byte
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), h.limit-len(h.data))]...)
	return len(p), nil
}
