package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/term"
)

// confirm asks a yes-or-no question. Without a terminal and without --yes it
// returns an error.
func (g *globals) confirm(ctx context.Context, question string) (bool, error) {
	if err := g.mayAsk(question); err != nil || g.yes {
		return g.yes, err
	}
	answer, err := g.ask(ctx, question+" [y/N] ")
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// mustConfirm is confirm with an error for any answer but yes.
func (g *globals) mustConfirm(ctx context.Context, question string) error {
	ok, err := g.confirm(ctx, question)
	if err == nil && !ok {
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

// ask returns the typed line without surrounding spaces, or "" at the end of the
// input.
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
