package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/view"
)

// reloadRequest is one bundle's wish for a reload after its files are in
// place.
type reloadRequest struct {
	bundle  string
	content string // that the program is to read
	cfg     *ReloadConfig
	lists   [][]string // distinct argument lists
	trigger command.Trigger
	splay   time.Duration
	leader  command.LeaderReload // when the settings name an election
	// restore puts the old files back; nil when there is nothing to restore.
	restore func(failed error) error
	done    chan error // size 1: the result
}

// reloads owns the reload queues: one per command. A queue runs when every
// apply in flight that names its command has either swapped or given up, so
// that bundles of one view reload once. It is safe for concurrent use.
type reloads struct {
	engine *Engine

	wg     sync.WaitGroup
	mu     sync.Mutex // mu guards what follows and everything in it.
	queues map[string]*reloadQueue
	runs   map[string]ReloadStatus // latest run of each bundle
}

// ReloadStatus is the latest run of a reload command.
type ReloadStatus struct {
	At    time.Time    `json:"at"`
	Took  view.Seconds `json:"took_seconds"`
	Code  int          `json:"code"`
	Error string       `json:"error,omitempty"`
}

type reloadQueue struct {
	key      string
	expected int // applies in flight that may still ask
	waiting  []*reloadRequest
	running  bool
	last     time.Time // start of the latest run
}

// join announces an apply that names the command. It is called for all
// bundles of one view before the first of them begins.
func (r *reloads) join(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[key]
	if q == nil {
		q = &reloadQueue{key: key}
		r.queues[key] = q
	}
	q.expected++
}

// submit ends what join announced: with a request when files were swapped, or
// with nil when no reload is needed.
func (r *reloads) submit(ctx context.Context, key string, req *reloadRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[key]
	q.expected--
	if req != nil {
		q.waiting = append(q.waiting, req)
	}
	r.next(ctx, q)
}

// next starts a run if one is due. r.mu is held.
func (r *reloads) next(ctx context.Context, q *reloadQueue) {
	if q.running || q.expected > 0 || len(q.waiting) == 0 {
		return
	}
	batch := q.waiting
	q.waiting, q.running = nil, true
	r.wg.Go(func() {
		r.batch(ctx, q, batch)
		r.mu.Lock()
		defer r.mu.Unlock()
		q.running = false
		r.next(ctx, q)
	})
}

// batch runs the command once for all of the requests. If it fails, the files
// of all that want it are restored, and it runs again.
func (r *reloads) batch(ctx context.Context, q *reloadQueue, batch []*reloadRequest) {
	batch = slices.DeleteFunc(batch, func(req *reloadRequest) bool {
		if req.cfg.Leader == "" {
			return false
		}
		if r.engine.Fleet != nil {
			req.trigger.Term = r.engine.Fleet.Term(req.cfg.Leader)
			req.leader.Term = req.trigger.Term
		}
		if req.trigger.Term == 0 {
			req.done <- command.ErrNotLeading // another host's work
		}
		return req.trigger.Term == 0
	})
	if len(batch) == 0 {
		return
	}
	failed, err := map[*reloadRequest]error{}, r.pace(ctx, q, batch)
	if err == nil {
		failed, err = r.locked(ctx, q, batch)
	}
	for _, req := range batch {
		end, result := cmp.Or(err, failed[req]), "ok"
		if end != nil {
			result = "failed"
		}
		r.engine.Observer.Reloaded(req.bundle, result)
		req.done <- end
	}
}

// locked reloads while no bundle of the same command has unchecked files in
// place. It returns the errors of the requests that failed.
func (r *reloads) locked(ctx context.Context, q *reloadQueue, batch []*reloadRequest) (map[*reloadRequest]error, error) {
	release, err := r.engine.lock.command(ctx, "key\x00"+q.key)
	if err != nil {
		return nil, err
	}
	defer release()
	failed := r.all(ctx, batch)
	if len(failed) > 0 && ctx.Err() == nil {
		r.restore(ctx, batch, failed)
	}
	return failed, nil
}

// pace waits for the splay and the least interval since the last run.
func (r *reloads) pace(ctx context.Context, q *reloadQueue, batch []*reloadRequest) error {
	var splay, interval time.Duration
	for _, req := range batch {
		splay = max(splay, req.splay)
		interval = max(interval, req.cfg.MinInterval)
	}
	if splay > 0 && !pace.Sleep(ctx, pace.Jitter(splay)) {
		return context.Cause(ctx)
	}
	r.mu.Lock()
	last := q.last
	r.mu.Unlock()
	if !last.IsZero() && !pace.Sleep(ctx, time.Until(last.Add(interval))) {
		return context.Cause(ctx)
	}
	r.mu.Lock()
	q.last = time.Now()
	r.mu.Unlock()
	return nil
}

// all runs each distinct argument list of the batch once. It returns the errors
// of the requests that name a command which failed.
func (r *reloads) all(ctx context.Context, batch []*reloadRequest) map[*reloadRequest]error {
	type run struct {
		by  string // the bundle for which it ran
		err error
	}
	ran := map[string]run{}
	failed := map[*reloadRequest]error{}
	for _, req := range batch {
		r.engine.warnAttempt(r.engine.attempts.begin(req.bundle, req.content))
	}
	for _, req := range batch {
		err := r.ledgered(ctx, req, func() error {
			for _, args := range req.lists {
				key := strings.Join(args, "\x00")
				known, ok := ran[key]
				if ok {
					if s := r.newest(known.by); s != nil {
						r.note(req.bundle, *s, known.err)
					}
				} else {
					known = run{req.bundle, r.retried(ctx, req, args)}
					ran[key] = known
				}
				if known.err != nil {
					return known.err
				}
			}
			return nil
		})
		if err != nil {
			failed[req] = err
		}
	}
	return failed
}

// ledgered runs the commands of a request; those of a leader-only one between two
// writes of its ledger, and not when a previous leader has run them for these files.
func (r *reloads) ledgered(ctx context.Context, req *reloadRequest, commands func() error) error {
	if req.cfg.Leader == "" {
		return commands()
	}
	done, finish, err := r.engine.Fleet.BeginReload(ctx, req.leader)
	if err != nil || done {
		return err
	}
	err = commands()
	finish(err)
	return err
}

// retried runs one command, again with back-off as often as it may.
func (r *reloads) retried(ctx context.Context, req *reloadRequest, args []string) error {
	var err error
	for try := 0; try <= req.cfg.Retry; try++ {
		if try > 0 && !pace.Sleep(ctx, pace.Backoff(try, max(req.cfg.MinInterval, 500*time.Millisecond), 30*time.Second)) {
			return context.Cause(ctx)
		}
		if err = r.once(ctx, req, args); err == nil {
			return nil
		}
		if _, refused := errors.AsType[*refusedError](err); refused || errors.Is(err, command.ErrNotLeading) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// once runs one command and, where the settings ask for it, waits until the
// master has new workers.
func (r *reloads) once(ctx context.Context, req *reloadRequest, args []string) error {
	c := req.trigger.Command(req.cfg.Command, args)
	c.Timeout = cmp.Or(max(req.cfg.Timeout, 0), DefaultReloadTimeout)
	verification := req.cfg.Verify.verify()
	run := r.engine.Options.Run
	if leader := req.cfg.Leader; leader != "" {
		run = func(ctx context.Context, c proc.Command) (proc.Result, error) {
			return r.engine.Fleet.RunLeading(ctx, leader, req.trigger.Term, c)
		}
	}
	began := time.Now()
	res, err := run(ctx, c)
	took := time.Since(began)
	if leader := req.cfg.Leader; err != nil && leader != "" && r.engine.Fleet.Term(leader) != req.trigger.Term {
		return command.ErrNotLeading // It says nothing about the files: the next leader runs it.
	}
	if err != nil {
		r.engine.Log.Warn("reload failed", "template", req.bundle, "code", res.Code, "took", took, "err", err)
	} else {
		r.engine.Log.Info("reload finished", "template", req.bundle, "code", res.Code, "took", took)
		if verification != nil {
			err = verification.wait(ctx)
		}
	}
	s := ReloadStatus{At: began, Took: view.Seconds(took), Code: res.Code}
	if err != nil {
		s.Error = err.Error()
	}
	r.note(req.bundle, s, err)
	return err
}

func (r *reloads) note(bundle string, s ReloadStatus, err error) {
	r.engine.Conds.Set(condition.ReloadFailed, bundle, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = map[string]ReloadStatus{}
	}
	r.runs[bundle] = s
}

// newest is the newest run of a bundle's command; nil when there was none.
func (r *reloads) newest(bundle string) *ReloadStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.runs[bundle]; ok {
		return &s
	}
	return nil
}

// restore puts back the files of the failed requests that ask for it, and runs
// the commands of all failed ones again. It notes in failed how each of them
// ended. A request that keeps its files has succeeded when this run succeeds:
// the program has read them.
func (r *reloads) restore(ctx context.Context, batch []*reloadRequest, failed map[*reloadRequest]error) {
	var again []*reloadRequest
	restored := map[*reloadRequest]error{} // the first error
	for _, req := range batch {
		first, bad := failed[req]
		if !bad || errors.Is(first, command.ErrNotLeading) {
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
		req.leader.Digest = files.Digest([]byte("restored " + req.leader.Digest))
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
			// The program has not read the old files: the reload stays pending.
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
	clean bool // the reload of the old files succeeded: nothing is pending
	stuck bool // the old files are not all back
}

func (e *restoredError) Error() string {
	if e.clean {
		return e.err.Error() + "; the old files are in use again"
	}
	return e.err.Error()
}

func (e *restoredError) Unwrap() error { return e.err }

// swapLock keeps swap-and-check and reload apart: while files are in place
// that are not yet checked, no apply may make a program read them. It holds a channel of
// one token for each reload command. The zero value is ready.
type swapLock struct{ slots sync.Map }

// command takes the lock for a reload command.
func (l *swapLock) command(ctx context.Context, key string) (func(), error) {
	slot, _ := l.slots.LoadOrStore(key, make(chan struct{}, 1)) // the sender holds the lock
	s := slot.(chan struct{})                                   //nolint:forcetypeassert // nothing else is stored
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// acquire takes the lock for a swap: against the reload command of the bundle
// and, when a check is to run while the files are in place, against every
// other such swap.
func (l *swapLock) acquire(ctx context.Context, key string, window bool) (func(), error) {
	own, err := l.command(ctx, "key\x00"+key)
	if err != nil || !window {
		return own, err
	}
	swap, err := l.command(ctx, "swap")
	if err != nil {
		own()
		return nil, err
	}
	return func() { swap(); own() }, nil
}
