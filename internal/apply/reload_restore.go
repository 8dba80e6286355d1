package apply

import (
	"context"
	"errors"
	"fmt"
)

// restore puts back the files of all that ask for it and reloads again. The
// returned error is the first one, with what became of the restoring.
func (r *reloads) restore(ctx context.Context, batch []*reloadRequest, failed error) error {
	var restored []*reloadRequest
	var errs []error
	for _, req := range batch {
		if req.restore == nil {
			continue
		}
		if err := req.restore(); err != nil {
			errs = append(errs, fmt.Errorf("restore files of %s: %w", req.bundle, err))
			continue
		}
		restored = append(restored, req)
	}
	if len(restored) == 0 {
		return errors.Join(append([]error{failed}, errs...)...)
	}
	// One more run tells the program of the old files. Its failure leaves
	// the reload owed.
	if err := r.all(ctx, restored); err != nil {
		errs = append(errs, fmt.Errorf("reload of the restored files: %w", err))
	}
	return &restoredError{err: errors.Join(append([]error{failed}, errs...)...), clean: len(errs) == 0}
}

// restoredError is a failed reload after which the old files are in use again.
type restoredError struct {
	err   error
	clean bool // the reload of the old files succeeded: nothing is owed
}

func (e *restoredError) Error() string {
	if e.clean {
		return e.err.Error() + "; the old files are in use again"
	}
	return e.err.Error()
}

func (e *restoredError) Unwrap() error { return e.err }
