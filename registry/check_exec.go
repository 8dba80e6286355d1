package registry

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

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
