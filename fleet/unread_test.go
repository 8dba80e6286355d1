package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/session"
)

// A host that can never use a version says so at once, and does not let the fleet
// wait for its vote. With absent = skip it would even be passed over, and fail in the
// middle of the rollout.
func TestVote_UnusableVersion(t *testing.T) {
	for _, why := range []error{
		config.ErrBounds, config.ErrFormat, config.ErrNoVersion, config.ErrDigest, &session.Error{Op: "getData", Err: session.ErrNoAuth},
	} {
		inBubble(t, 2, func(t *testing.T, w *world) {
			w.hosts["web-01"].unread = map[int64]error{2: fmt.Errorf("version 2: %w", why)}
			began := time.Now()
			state := w.awaitPhase(w.propose(2, Strategy{Parallel: 2, Absent: AbsentSkip}), PhaseAborted, PhaseHalted)
			if state.Gate.Host != "web-01" || !strings.Contains(state.Gate.Reason, why.Error()) || time.Since(began) > 10*time.Second {
				t.Errorf("%v: %s after %s: %+v", why, state.Phase(), time.Since(began), state.Gate)
			}
		})
	}
}

// What a host could not read because its connection was lost is no vote.
func TestVote_LostConnection(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, w *world) {
		w.hosts["web-01"].unread = map[int64]error{2: &session.Error{Op: "getData", Err: session.ErrSuspended}}
		state := w.awaitPhase(w.propose(2, Strategy{Parallel: 2}), PhaseAborted, PhaseHalted)
		if !strings.Contains(state.Gate.Reason, "no vote within 1m0s from web-01") {
			t.Errorf("got %+v", state.Gate)
		}
	})
}
