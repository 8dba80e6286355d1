package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
)

// become replaces this process by the command. It returns only on failure.
func become(args, env []string) error {
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fail(exitNotExecutable, fmt.Errorf("%s: cannot be executed", args[0]))
	case err != nil:
		return fail(exitNotFound, fmt.Errorf("%s: command not found", args[0]))
	}
	if err := syscall.Exec(path, args, env); err != nil { //nolint:gosec // the command of the command line.
		return fail(exitNotExecutable, fmt.Errorf("execute %s: %w", path, err))
	}
	return nil
}
