package memzk

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"

	"github.com/zkagent/zkagent/internal/jute"
)

// Liar is a connection whose server lies now and then: wrong lengths, giant counts, wrong
// xids, replies to requests that nobody made, events without end, half frames, and
// another session id.
type Liar struct {
	net.Conn
	Rand   *rand.Rand                  // of one goroutine: the reader's
	Honest *atomic.Bool                // no lies
	Greet  func(*jute.ConnectResponse) // the only lie, when not nil

	left   []byte // to be read
	frames int
}

// Read implements net.Conn.
func (l *Liar) Read(p []byte) (int, error) {
	if len(l.left) == 0 {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(l.Conn, frame); err != nil {
			return 0, err
		}
		length := binary.BigEndian.Uint32(frame)
		if length > 1<<24 { // the text that answers a four-letter word
			return copy(p, frame), nil
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(l.Conn, body); err != nil {
			return 0, err
		}
		l.frames++
		l.left = slices.Concat(frame, body)
		switch {
		case l.Honest.Load():
		case l.Greet != nil && l.frames == 1:
			var r jute.ConnectResponse
			_ = jute.NewDecoder(body).Get(&r)
			l.Greet(&r)
			e := jute.NewEncoder(make([]byte, 4, 128))
			e.Put(r)
			l.left = e.Bytes()
			binary.BigEndian.PutUint32(l.left, uint32(len(l.left)-4)) //nolint:gosec // a short frame
		case l.Greet == nil && l.Rand.IntN(4) == 0:
			l.left = l.lie(l.left)
		}
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

// lie returns a frame with a lie in it.
func (l *Liar) lie(f []byte) []byte {
	number := func(at int, n uint32) {
		if at+4 <= len(f) {
			binary.BigEndian.PutUint32(f[at:], n)
		}
	}
	unasked := func(xid uint32, body int) []byte {
		g := make([]byte, 4+16+body)
		binary.BigEndian.PutUint32(g, uint32(16+body)) //nolint:gosec // a short frame
		binary.BigEndian.PutUint32(g[4:], xid)
		return g
	}
	numbers := []uint32{0, 1, 7, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1, l.Rand.Uint32()}
	n := numbers[l.Rand.IntN(len(numbers))]
	switch l.Rand.IntN(8) {
	case 0:
		number(0, n) // a wrong length
	case 1:
		number(4*l.Rand.IntN(max(len(f)/4, 1)), n) // a giant count, another error, another zxid
	case 2:
		number(4, n) // a wrong xid
	case 3:
		return append(unasked(n, l.Rand.IntN(64)), f...)
	case 4:
		for range l.Rand.IntN(200) { // events
			e := unasked(1<<32-1, 4+4+4+2)
			binary.BigEndian.PutUint32(e[20:], uint32(1+l.Rand.IntN(5))) //nolint:gosec // a small number
			binary.BigEndian.PutUint32(e[24:], 3)
			binary.BigEndian.PutUint32(e[28:], 2)
			copy(e[32:], "/w")
			f = append(f, e...)
		}
	case 5:
		return f[:l.Rand.IntN(len(f))] // half a frame: what comes next is taken for its rest
	case 6:
		return append(f, f...)
	case 7:
		if l.frames == 1 && len(f) >= 20 {
			binary.BigEndian.PutUint64(f[12:], l.Rand.Uint64()) // another session
		}
	}
	return f
}
