package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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
var FindPreview = sync.OnceValues(func() (PreviewWay, error) {
	if !supported || !reexecuted.Load() {
		return NoPreview, ErrUnsupported
	}
	dir, err := os.MkdirTemp("", "zkagent-preview-")
	if err != nil {
		return NoPreview, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	probe := Preview{Files: []PreviewFile{{Path: filepath.Join(dir, "probe"), Data: []byte("x"), Mode: 0o600, UID: -1, GID: -1}}}
	var errs []error
	for _, way := range []PreviewWay{PreviewMounts, PreviewUser} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := runPreview(ctx, Command{Preview: &probe}, way)
		cancel()
		if err == nil {
			return way, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", way, err))
	}
	return NoPreview, errors.Join(append(errs, previewHint())...)
})

// runPreview is Run in a preview of the given way.
func runPreview(ctx context.Context, c Command, way PreviewWay) (Result, error) {
	began := time.Now()
	spec := previewSpec{Preview: *c.Preview, Args: rawBytes(c.Args), Env: rawBytes(CleanEnv(c.Env)), Dir: []byte(c.Dir), User: way == PreviewUser}
	run, err := newChild("", previewArg, previewAttr(way))
	if err != nil {
		return Result{Code: -1}, err
	}
	out, err := start(run.cmd, c)
	if err := run.started(err); err != nil {
		return Result{Code: -1, Took: time.Since(began)}, &PreviewError{plain(err).Error()}
	}
	var report previewReport
	run.wg.Go(func() { _ = json.NewEncoder(run.control).Encode(spec) })
	run.wg.Go(func() { _ = json.NewDecoder(io.LimitReader(run.status, 1<<20)).Decode(&report) })
	r, cause := c.wait(ctx, run.cmd)
	run.close()
	if report.Result != nil {
		r = *report.Result
	}
	r.Took = time.Since(began)
	out.finish(&r)
	switch {
	case cause != nil || report.Result != nil:
		return r, verdict(c, &r, cause)
	case report.Error != "":
		return r, &PreviewError{report.Error}
	case report.Start != "":
		return r, fmt.Errorf("start %s: %s", program(c.Args), report.Start)
	}
	return r, &PreviewError{"its process died"}
}
