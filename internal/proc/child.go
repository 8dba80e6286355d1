package proc

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// child is this program executed again, as a guard or as a preview. It is told what to do
// by the control pipe, whose end ends it, and answers by the status pipe.
type child struct {
	cmd             *exec.Cmd
	control, status *os.File       // our ends
	wg              sync.WaitGroup // what uses them
}

func newChild(executable, arg string, attr *syscall.SysProcAttr) (*child, error) {
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, controlR.Close(), controlW.Close())
	}
	return &child{control: controlW, status: statusR, cmd: &exec.Cmd{
		Path: cmp.Or(executable, "/proc/self/exe"), Args: []string{"zkagent", arg}, Dir: "/", Env: CleanEnv(nil),
		SysProcAttr: attr, ExtraFiles: []*os.File{controlR, statusW},
	}}, nil
}

// started closes the files of the other process; after the error of a start also our own.
func (c *child) started(err error) error {
	for _, f := range c.cmd.ExtraFiles {
		_ = f.Close()
	}
	if err != nil {
		return errors.Join(err, c.control.Close(), c.status.Close())
	}
	return nil
}

// close waits for the last report of a process that has ended.
func (c *child) close() {
	_ = c.control.Close()
	_ = c.status.SetReadDeadline(time.Now().Add(pipeWait))
	c.wg.Wait()
	_ = c.status.Close()
}

// rawBytes and rawText carry texts over JSON as they are.
func rawBytes(list []string) [][]byte {
	raw := make([][]byte, len(list))
	for i, s := range list {
		raw[i] = []byte(s)
	}
	return raw
}

func rawText(raw [][]byte) []string {
	list := make([]string, len(raw))
	for i, b := range raw {
		list[i] = string(b)
	}
	return list
}
