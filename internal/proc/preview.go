package proc

import (
	"context"
	"errors"
	"fmt"
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
	Path     string // absolute; links in its directory are followed
	Data     []byte
	Mode     fs.FileMode
	UID, GID int // -1: that of this program
	Gone     bool
}

// previewArg is the hidden first argument that makes this program a preview.
const previewArg = "__preview"

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
	run, err := newChild("", previewArg, previewAttr(way))
	if err != nil {
		return Result{Code: -1}, err
	}
	run.out, err = start(run.cmd, c)
	if err := run.started(err, nil); err != nil {
		return Result{Code: -1, Took: time.Since(began)}, &PreviewError{plain(err).Error()}
	}
	s := spec{Preview: *c.Preview, Args: c.Args, Env: CleanEnv(c.Env), Dir: c.Dir, User: way == PreviewUser}
	run.wg.Go(func() { _ = run.orders.Encode(s) })
	_, cause := c.wait(ctx, run.cmd)
	r, err := run.end(c, cause)
	r.Took = time.Since(began)
	return r, err
}
