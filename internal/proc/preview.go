package proc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// A preview runs a command in a private mount namespace in which new files already stand
// at their destinations. Nobody else sees them.
//
// Steps: this program is executed again in the namespace; it covers each directory of the
// files with an overlay, or with a copy; it writes the files there; it runs the command,
// and ends with it.
//
// Guaranteed: no mount and no file of the preview is seen outside, and all of them are gone
// when the last process of the command is. All its processes are killed when the command
// ends, or this program does. What the command writes into the covered directories is lost.
//
// Not guaranteed: a preview is no sandbox. The command has the rights of this program, and
// changes what it writes elsewhere.

// Preview are the files that a command sees in place.
type Preview struct {
	Files []PreviewFile
	Hide  []string // paths that the command does not see: staged files
}

// PreviewFile is one file of a preview.
type PreviewFile struct {
	Path string      `json:"path"` // absolute; links in its directory are followed
	Data []byte      `json:"data,omitempty"`
	Mode fs.FileMode `json:"mode,omitempty"`
	UID  int         `json:"uid"` // -1: that of this program
	GID  int         `json:"gid"` // likewise
	Gone bool        `json:"gone,omitempty"`
}

// previewArg is the hidden first argument that makes this program a preview.
const previewArg = "__preview"

// previewSpec is what is sent to the process in the namespace.
type previewSpec struct {
	Preview
	Args [][]byte `json:"args"` // none: only try whether a preview is possible
	Env  [][]byte `json:"env"`
	Dir  []byte   `json:"dir"`
	User bool     `json:"user"` // in a user namespace
}

// previewReport is its answer.
type previewReport struct {
	Error  string  `json:"error,omitempty"` // why there was no preview
	Start  string  `json:"start,omitempty"` // why the command was not started
	Result *Result `json:"result,omitempty"`
}

// PreviewError says that the preview could not be made; the command has not run.
type PreviewError struct{ Reason string }

func (e *PreviewError) Error() string { return "no preview of the files: " + e.Reason }

// PreviewWay is how this program makes previews.
type PreviewWay int

// The ways to make a preview.
const (
	NoPreview     PreviewWay = iota
	PreviewMounts            // a mount namespace, by the rights of this program
	PreviewUser              // a user namespace
)

func (w PreviewWay) String() string {
	switch w {
	case PreviewMounts:
		return "a mount namespace"
	case PreviewUser:
		return "a user namespace"
	default:
		return "none"
	}
}

// reexecuted is set when main has called GuardMain, so that this program can be executed
// again.
var reexecuted atomic.Bool

// FindPreview finds out, once, how this program makes previews. The error says what is in
// the way of one.
func FindPreview() (PreviewWay, error) {
	f := findPreview()
	return f.way, f.why
}

type foundPreview struct {
	way PreviewWay
	why error
}

var findPreview = sync.OnceValue(func() foundPreview {
	if !supported || !reexecuted.Load() {
		return foundPreview{NoPreview, ErrUnsupported}
	}
	dir, err := os.MkdirTemp("", "zkagent-preview-")
	if err != nil {
		return foundPreview{NoPreview, err}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	probe := Preview{Files: []PreviewFile{{Path: filepath.Join(dir, "probe"), Data: []byte("x"), Mode: 0o600, UID: -1, GID: -1}}}
	var errs []error
	for _, way := range []PreviewWay{PreviewMounts, PreviewUser} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := runPreview(ctx, Command{Preview: &probe}, way)
		cancel()
		if err == nil {
			return foundPreview{way, nil}
		}
		errs = append(errs, fmt.Errorf("%s: %w", way, err))
	}
	return foundPreview{NoPreview, errors.Join(append(errs, previewHint())...)}
})

// previewRun is the process in the namespace, seen from outside.
type previewRun struct {
	control, status *os.File // our ends
	inner           []*os.File
	report          previewReport
	wg              sync.WaitGroup
}

// runPreview is Run in a preview of the given way.
func runPreview(ctx context.Context, c Command, way PreviewWay) (Result, error) {
	began := time.Now()
	spec := previewSpec{Preview: *c.Preview, Args: rawBytes(c.Args), Env: rawBytes(CleanEnv(c.Env)), Dir: []byte(c.Dir), User: way == PreviewUser}
	run, cmd, err := newPreviewRun(way)
	if err != nil {
		return Result{Code: -1}, err
	}
	out, err := start(cmd, c)
	run.started(spec, err == nil)
	if err != nil {
		return Result{Code: -1, Took: time.Since(began)}, &PreviewError{plain(err).Error()}
	}
	if c.Started != nil {
		c.Started(cmd.Process.Pid)
	}
	cause := supervise(ctx, cmd, c.Stop, c.grace())
	_ = cmd.Wait()
	run.end()
	out.finish()
	r := result(cmd.ProcessState)
	if run.report.Result != nil {
		r = *run.report.Result
	}
	r.Took = time.Since(began)
	r.Output, r.Truncated = out.tail.text()
	switch {
	case cause != nil || run.report.Result != nil:
		return r, verdict(c, &r, cause)
	case run.report.Error != "":
		return r, &PreviewError{run.report.Error}
	case run.report.Start != "":
		return r, fmt.Errorf("start %s: %s", program(c.Args), run.report.Start)
	}
	return r, &PreviewError{"its process died"}
}

// newPreviewRun makes the command that is executed in new namespaces.
func newPreviewRun(way PreviewWay) (*previewRun, *exec.Cmd, error) {
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, controlR.Close(), controlW.Close())
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"zkagent", previewArg}, Dir: "/", Env: CleanEnv(nil),
		SysProcAttr: previewAttr(way), ExtraFiles: []*os.File{controlR, statusW},
	}
	return &previewRun{control: controlW, status: statusR, inner: []*os.File{controlR, statusW}}, cmd, nil
}

// started sends what the process is to do. The control pipe stays open: when it ends, the
// process and all of its namespace end.
func (r *previewRun) started(spec previewSpec, ok bool) {
	for _, f := range r.inner {
		_ = f.Close()
	}
	if !ok {
		_, _ = r.control.Close(), r.status.Close()
		return
	}
	r.wg.Go(func() { _ = json.NewEncoder(r.control).Encode(spec) })
	r.wg.Go(func() {
		dec := json.NewDecoder(bufio.NewReader(io.LimitReader(r.status, 1<<20)))
		_ = dec.Decode(&r.report)
	})
}

// end waits for the report of a process that has ended.
func (r *previewRun) end() {
	_ = r.control.Close()
	_ = r.status.SetReadDeadline(time.Now().Add(pipeWait))
	r.wg.Wait()
	_ = r.status.Close()
}
