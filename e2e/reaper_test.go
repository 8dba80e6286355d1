package e2e

import (
	"bytes"
	endian "encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/zkagent/zkagent/internal/jute"
)

// reaper is the network between processes and ZooKeeper. It kills one of them
// at a request: before the request reaches ZooKeeper, or before the answer reaches
// the process.
type reaper struct {
	zk string

	mu     sync.Mutex // guards what follows
	at     *request   // nil: kill no process
	killed chan string
}

// request is one of those that processes make in the course of a rollout.
type request struct {
	by     string   // the process that is meant; empty: whichever makes it first
	not    string   // the process that is not meant
	ops    []int32  // operations of which it is one
	has    []string // what is in it
	before bool     // it does not reach ZooKeeper
}

// Operations by what they do to a znode; a multi may do all of it.
var (
	creates = []int32{jute.OpCreate, jute.OpCreate2, jute.OpMulti}
	sets    = []int32{jute.OpSetData, jute.OpMulti}
)

// arm makes the next such request the last one of its process. Its name comes
// through the channel when it is dead.
func (r *reaper) arm(at request) <-chan string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.killed = &at, make(chan string, 1)
	return r.killed
}

// strike reports whether the frame is what the reaper waits for; from then on
// it waits for nothing.
func (r *reaper) strike(id string, frame []byte) (*request, chan<- string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil || !r.at.is(id, frame) {
		return nil, nil
	}
	at := r.at
	r.at = nil
	return at, r.killed
}

// is looks into a frame with its length, its xid and its operation.
func (q *request) is(id string, frame []byte) bool {
	if len(frame) < 12 || id == q.not || q.by != "" && id != q.by {
		return false
	}
	lacks := func(part string) bool { return !bytes.Contains(frame, []byte(part)) }
	return slices.Contains(q.ops, int32(endian.BigEndian.Uint32(frame[8:]))) && !slices.ContainsFunc(q.has, lacks)
}

// line returns where a process finds ZooKeeper until the test ends. kill ends
// the process.
func (r *reaper) line(t *testing.T, id string, kill func()) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveConns(t, l, func(client net.Conn) {
		server, err := net.Dial("tcp4", r.zk)
		if err != nil {
			return
		}
		c := &reapedConn{reaper: r, id: id, kill: kill, client: client, server: server}
		var wg sync.WaitGroup
		wg.Go(c.requests)
		c.answers()
		wg.Wait()
	})
	return l.Addr().String()
}

// reapedConn is one connection. Each of its two goroutines ends with one of its
// ends, and then closes both.
type reapedConn struct {
	*reaper
	id             string
	kill           func()
	client, server net.Conn
	last           atomic.Pointer[[]byte] // the xid whose answer ends the connection
}

func (c *reapedConn) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// requests passes on what the process asks for.
func (c *reapedConn) requests() {
	for greeted := false; ; greeted = true {
		frame, err := readFrame(c.client)
		if err != nil {
			c.close()
			return
		}
		var at *request
		var killed chan<- string
		if greeted { // the first frame has no operation
			at, killed = c.strike(c.id, frame)
		}
		if at != nil {
			// Before the kill: from then on writes to the process fail, which must
			// not end the connection.
			xid := frame[4:8]
			c.last.Store(&xid)
			c.kill()
		}
		if at == nil || !at.before {
			_, err = c.server.Write(frame)
		}
		switch {
		case at != nil && (at.before || err != nil):
			c.close()
			killed <- c.id
			return
		case at != nil: // answers closes the connection
			killed <- c.id
			return
		case err != nil:
			c.close()
			return
		}
	}
}

// answers passes on what ZooKeeper answers; to a process that is dead, nothing.
func (c *reapedConn) answers() {
	defer c.close()
	for greeted := false; ; greeted = true {
		frame, err := readFrame(c.server)
		if err != nil {
			return
		}
		last := c.last.Load()
		switch {
		case last == nil:
			_, err = c.client.Write(frame)
			if err != nil && c.last.Load() == nil {
				return
			}
		case greeted && len(frame) >= 8 && bytes.Equal(frame[4:8], *last):
			return
		}
	}
}

// readFrame reads one frame of ZooKeeper's protocol with its length.
func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+endian.BigEndian.Uint32(head))
	copy(frame, head)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}
