package apply

import (
	"context"
	"fmt"

	"github.com/zkagent/zkagent/internal/files"
)

// restore puts back the files of the failed requests that ask for it, and runs
// the commands of all failed ones again. It notes in failed how each of them
// ended. A request that keeps its files has succeeded when this run succeeds:
// the program has read them.
func (r *reloads) restore(ctx context.Context, batch []*reloadRequest, failed map[*reloadRequest]error) {
	var again []*reloadRequest
	restored := map[*reloadRequest]error{} // the first error
	for _, req := range batch {
		first, bad := failed[req]
		if !bad {
			continue
		}
		if req.restore == nil {
			again = append(again, req)
			continue
		}
		if err := req.restore(first); err != nil {
			failed[req] = &restoredError{err: fmt.Errorf("%w; restore files of %s: %w", first, req.bundle, err), stuck: true}
			continue
		}
		restored[req] = first
		req.content = restoredContent
		req.digest = files.Digest([]byte("restored " + req.digest))
		again = append(again, req)
	}
	if len(restored) == 0 {
		return
	}
	second := r.all(ctx, again)
	for _, req := range again {
		first, back := restored[req]
		switch err := second[req]; {
		case back && err != nil:
			// The program has not read the old files: the reload stays owed.
			failed[req] = &restoredError{err: fmt.Errorf("%w; reload of the restored files: %w", first, err)}
		case back:
			failed[req] = &restoredError{err: first, clean: true}
		case err == nil:
			delete(failed, req)
		}
	}
}

// restoredError is a failed reload after which the old files are in use again.
type restoredError struct {
	err   error
	clean bool // the reload of the old files succeeded: nothing is owed
	stuck bool // the old files are not all back
}

func (e *restoredError) Error() string {
	if e.clean {
		return e.err.Error() + "; the old files are in use again"
	}
	return e.err.Error()
}

func (e *restoredError) Unwrap() error { return e.err }
