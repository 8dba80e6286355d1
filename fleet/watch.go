package fleet

import (
	"context"
	"time"

	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/session"
)

// wholeUpTo is the largest number of hosts for which Watch reads all records. Above
// it, Watch uses the coordinator's counts.
const wholeUpTo = 1000

// watchPause is the least time between two looks of Watch.
const watchPause = 100 * time.Millisecond

// Watch calls see with the state of a rollout now and after each change that it
// notices, until see returns false, ctx ends or the session ends. It folds changes
// that follow each other closely. It sees changes of the gate at once, and changes
// of hosts once a second.
func Watch(ctx context.Context, s *session.Session, root, name string, see func(*State) bool) error {
	for {
		_, _, gate, err := s.ExistsW(ctx, gatePath(root, name))
		if err != nil {
			return err
		}
		_, _, progress, err := s.ExistsW(ctx, progressPath(root, name))
		if err != nil {
			gate.Stop()
			return err
		}
		// Read after arming: what changes from here on fires a watch.
		state, err := Head(ctx, s, root, name)
		if err == nil && state.Proposal.Hosts <= wholeUpTo {
			state, err = Read(ctx, s, root, name)
		}
		if err != nil || !see(state) {
			gate.Stop()
			progress.Stop()
			return err
		}
		err = s.WaitAny(ctx, gate, progress)
		gate.Stop()
		progress.Stop()
		if err == nil && !pace.Sleep(ctx, watchPause) {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}
