package session

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
)

// errLost ends a call whose connection ended before its reply came.
var errLost = errors.New("connection lost")

// errMoved ends a connection to a server that the session has left.
var errMoved = errors.New("session moved to another server")

// maxThrottled is how often to repeat a request that an overloaded server threw away.
// The repeats take about 1.5 s.
const maxThrottled = 5

// call is one request on one connection.
type call struct {
	op    int32
	frame []byte // whole, with room for the xid at 4
	watch *Watch // armed by the reply; nil: none
	done  chan struct{}
	probe bool             // see probe in takeover.go
	after func(code int32) // called by the reader for replies of set-up frames; nil: no callback

	// Guarded by wire.mu until done is closed.
	xid    int32
	end    int // where the frame ends in the bytes to write
	sent   bool
	partly bool      // the server has received only the beginning of it
	sentAt time.Time // by Session.clock
	queued time.Time

	// Valid when done is closed.
	err  error
	code int32
	zxid int64
	body []byte // the reply with its header
}

// newCall returns the call of a request that exchange or its like sends.
func newCall(op int32, frame []byte) *call {
	return &call{op: op, frame: frame, done: make(chan struct{})}
}

// awaitAll waits for the ends of calls. It returns the cause when ctx ends first.
func awaitAll(ctx context.Context, calls ...*call) error {
	for _, c := range calls {
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// awaitsReply reports whether the call is a request, not a frame that sets up the connection.
func (c *call) awaitsReply() bool {
	return (c.sent || c.partly) && !c.probe && c.op != jute.OpSetWatches
}

// newFrame encodes a request with room for its xid, which is zero.
func newFrame(op int32, args ...any) []byte { return packet(int32(0), op, args) }

// packet encodes values with their length before them.
func packet(values ...any) []byte {
	e := jute.NewEncoder(make([]byte, 4, 128))
	e.Put(values...)
	return setLength(e.Bytes())
}

func setLength(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// finish ends the call and wakes its caller. Only the goroutine that removed it from
// the pending calls may call it.
func (c *call) finish(w *wire, err error) {
	c.err = err
	w.s.met.Done(jute.OpName(c.op), time.Since(c.queued), err != nil)
	if c.after != nil && err == nil {
		c.after(c.code)
	}
	close(c.done)
}

// reply handles the answer to a request of ours. It runs in the reading goroutine. So
// it arms a watch before the reader handles the next frame, which may be its event. And
// a watch whose event came first fires before the caller sees the reply.
func (w *wire) reply(xid int32, frame []byte) error {
	c := w.take(xid)
	if c == nil {
		return fmt.Errorf("server answered a request that was not made, xid %d", xid)
	}
	var h jute.ReplyHeader
	_ = jute.NewDecoder(frame).Get(&h) // receive has checked the length
	if h.Err == jute.ErrCodeSessionMoved {
		c.finish(w, errLost)
		return errMoved
	}
	before := w.s.zxid.Load()
	w.heard(c.sentAt, h.Zxid)
	w.patience()
	switch {
	case c.probe:
		w.proved.Store(true)
	case c.awaitsReply():
		w.useful.Store(true)
	}
	w.refused.Store(h.Err == jute.ErrCodeUnimplemented)
	if h.Err == jute.ErrCodeUnimplemented {
		w.able.refuse(c.op)
	} else {
		w.able.answered(c.op, len(c.frame)-4)
	}
	if c.watch != nil {
		w.s.watches.settle(w, c.watch, h.Err, before)
	}
	c.code, c.zxid, c.body = h.Err, h.Zxid, frame
	c.finish(w, nil)
	if h.Err == jute.ErrCodeSessionExpired {
		w.s.expire("a request was answered so")
	}
	return nil
}

// request describes an operation for exchange.
type request struct {
	op     int32
	path   string // as the caller knows it, for errors
	frame  []byte
	write  bool // it must not be applied twice
	kind   watchKind
	watch  string                    // the server's path to watch, in a request that ends with whether to; "": none
	needs  int32                     // another operation that the server must not have refused; 0: none
	calls  func(*wire) []*call       // what to send on a connection; nil: the frame alone
	result []any                     // what the reply holds, for Decoder.Get
	decode func(*jute.Decoder) error // instead of result; nil: none
	zxid   int64                     // of the reply
}

// newRequest returns a request about one path, or why that cannot be sent. args stand
// behind the path. What the reply holds is put into result.
func (s *Session) newRequest(op int32, path string, args []any, result ...any) (*request, error) {
	r := &request{op: op, path: path, result: result}
	if err := s.usable(path); err != nil {
		return nil, r.fail(err)
	}
	r.frame = newFrame(op, full(s.cfg.Chroot, path), args)
	return r, nil
}

// write sends a write about one path, see newRequest.
func (s *Session) write(ctx context.Context, op int32, path string, args []any, result ...any) error {
	r, err := s.newRequest(op, path, args, result...)
	if err == nil {
		r.write = true
		_, err = s.exchange(ctx, r)
	}
	return err
}

// ask sends a request about one path that changes nothing, see newRequest.
func (s *Session) ask(ctx context.Context, op int32, path string, args []any, result ...any) error {
	r, err := s.newRequest(op, path, args, result...)
	if err == nil {
		_, err = s.exchange(ctx, r)
	}
	return err
}

// exchange sends r, as often as it takes, and decodes its reply. It repeats a read when
// the connection is lost. It repeats a write only while it cannot have been applied.
// The error is an *Error.
func (s *Session) exchange(ctx context.Context, r *request) (*Watch, error) {
	end := func(error) {}
	if s.cfg.Trace != nil {
		traced := s.cfg.Trace(ctx, TracedRequest{Op: jute.OpName(r.op), Path: r.path, Bytes: len(r.frame) - 4, Session: s.ID(), Server: s.Server()})
		if traced != nil {
			end = traced
		}
	}
	watch, err := s.send(ctx, r)
	end(err)
	return watch, err
}

func (s *Session) send(ctx context.Context, r *request) (*Watch, error) {
	if len(r.frame)-4 > s.cfg.MaxFrame {
		return nil, r.fail(fmt.Errorf("%w: request of %d bytes, the limit is %d", ErrTooLarge, len(r.frame)-4, s.cfg.MaxFrame))
	}
	again := newTries(ctx, nil)
	for losses, throttled := 0, 0; ; {
		w, err := again.connection(ctx, s, r.write || r.op == jute.OpSync)
		if err == nil {
			err = w.able.check(r.op, r.needs, len(r.frame)-4)
		}
		if err != nil {
			return nil, r.fail(s.explain(ctx, w, err))
		}
		calls := r.begin(w)
		if slices.ContainsFunc(calls, func(c *call) bool { return !w.send(c) }) {
			stop(calls)
			continue
		}
		if err := awaitAll(ctx, calls...); err != nil {
			stop(calls)
			return nil, r.fail(r.unknown(err))
		}
		if throttled < maxThrottled && slices.ContainsFunc(calls, func(c *call) bool { return c.err == nil && c.code == jute.ErrCodeThrottled }) {
			// Not applied: the server threw it away unread.
			stop(calls)
			_ = s.Sleep(ctx, minBackoff<<throttled)
			throttled++
			continue
		}
		at := slices.IndexFunc(calls, func(c *call) bool { return c.err != nil })
		if at < 0 {
			watch, err := r.finish(w, calls)
			if err != nil {
				err = r.fail(s.explain(ctx, w, err))
			}
			return watch, err
		}
		stop(calls)
		switch lost := calls[at]; {
		case !errors.Is(lost.err, errLost):
			return nil, r.fail(lost.err)
		case lost.sent && r.write:
			return nil, r.fail(s.explain(ctx, w, r.unknown(s.cause())))
		}
		if again.policy != nil {
			if err := again.wait(ctx, s); err != nil {
				return nil, r.fail(err)
			}
		}
		losses++
		s.calm(ctx, losses)
	}
}

// calm waits before a request is sent again, from the fourth lost connection on: a server
// that hangs up on it every time must not cause a storm of connections.
func (s *Session) calm(ctx context.Context, losses int) {
	if losses > 3 {
		_ = s.Sleep(ctx, min(minBackoff<<min(losses-4, 10), maxBackoff))
	}
}

// begin returns the calls to send over w, and registers the watch of a read. It sets the
// last field of such a request, which asks the server for a watch.
func (r *request) begin(w *wire) []*call {
	if r.calls != nil {
		return r.calls(w)
	}
	c, ask := newCall(r.op, r.frame), false
	if r.watch != "" {
		c.watch, ask = w.s.watches.begin(w, r.watch, r.kind.set())
		r.frame[len(r.frame)-1] = 0
		if ask {
			r.frame[len(r.frame)-1] = 1
		}
	}
	return []*call{c}
}

// stop forgets the watches of calls.
func stop(calls []*call) {
	for _, c := range calls {
		c.watch.Stop()
	}
}

// unknown returns an error that says that the outcome is unknown, if the request was a
// write. why may be nil.
func (r *request) unknown(why error) error {
	switch {
	case !r.write:
		return why
	case why == nil:
		return ErrUnknown
	}
	return fmt.Errorf("%w: %w", ErrUnknown, why)
}

func (r *request) fail(err error) error {
	return &Error{Op: jute.OpName(r.op), Path: r.path, Err: err}
}

// finish decodes the replies. The first is that of the request; a setWatches may follow
// it. For exists, a missing znode arms the watch too.
func (r *request) finish(w *wire, calls []*call) (*Watch, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	c := calls[0]
	r.zxid = c.zxid
	if err := codeError(c.code); err != nil {
		if r.kind != watchExists || !errors.Is(err, ErrNoNode) {
			c.watch.Stop()
			return nil, err
		}
		return c.watch, err
	}
	d := jute.NewDecoder(c.body[jute.ReplyHeaderSize:])
	err := d.Get(r.result...)
	if r.decode != nil {
		err = cmp.Or(r.decode(d), d.Err())
	}
	if err != nil {
		c.watch.Stop()
		return nil, err
	}
	for _, set := range calls[1:] {
		switch err := codeError(set.code); {
		case errors.Is(err, ErrThrottled):
			return nil, fmt.Errorf("set watches: %w", err)
		case err != nil:
			// Whatever the reason of the refusal, read one by one.
			w.able.refuse(bulkWatches)
			return nil, fmt.Errorf("set watches: %w: %w", ErrUnimplemented, err)
		}
	}
	return c.watch, nil
}

// Tracer is called when a request begins, in the goroutine and with the context of its
// caller. The session calls the returned function with the error when the request has
// ended; the function may be nil. Many goroutines may call a Tracer at once, and it must
// not block. The session does not trace pings and the requests that set up a connection.
// A request that is sent again after a lost connection is traced once.
type Tracer func(ctx context.Context, r TracedRequest) (end func(error))

// TracedRequest describes a request to a Tracer.
type TracedRequest struct {
	Op      string // as ZooKeeper names it: "getData", "create2", "multi", ...
	Path    string // without the chroot; empty for requests of several paths
	Bytes   int    // size of the request, without the length field
	Session int64  // id of the session
	Server  string // host:port last connected to
}
