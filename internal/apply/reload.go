package apply

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/pace"
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
	zxids   map[string]int64 // the changes that a leader-only reload accounts for
	digest  string           // of the files that are in place
	repair  bool             // they are as before, after somebody else changed them
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
	runs   map[string]ReloadStatus // newest run of each bundle
}

// ReloadStatus is the newest run of a reload command.
type ReloadStatus struct {
	At    time.Time    `json:"at"`
	Took  view.Seconds `json:"took_seconds"`
	Code  int          `json:"code"`
	Error string       `json:"error,omitempty"`
}

// reloadQueue is the queue of one command.
type reloadQueue struct {
	key      string
	expected int // applies in flight that may still ask
	waiting  []*reloadRequest
	running  bool
	last     time.Time // start of the newest run
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
	batch = r.leading(batch)
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

// leading answers the requests that are another host's work.
func (r *reloads) leading(batch []*reloadRequest) []*reloadRequest {
	var mine []*reloadRequest
	for _, req := range batch {
		if req.cfg.Leader != "" {
			if r.engine.Fleet != nil {
				req.trigger.Term = r.engine.Fleet.Term(req.cfg.Leader)
			}
			if req.trigger.Term == 0 {
				req.done <- command.ErrNotLeading
				continue
			}
		}
		mine = append(mine, req)
	}
	return mine
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
					r.share(known.by, req.bundle)
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
// writes of its ledger, and not when a former leader has run them for these files.
func (r *reloads) ledgered(ctx context.Context, req *reloadRequest, commands func() error) error {
	if req.cfg.Leader == "" {
		return commands()
	}
	done, finish, err := r.engine.Fleet.BeginReload(ctx, command.LeaderReload{Bundle: req.bundle, Election: req.cfg.Leader, Zxids: req.zxids, Digest: req.digest, Repair: req.repair})
	if err != nil || done {
		return err
	}
	err = commands()
	finish(err)
	return err
}
