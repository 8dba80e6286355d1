package web

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// How the streams of the listeners are bounded.
const (
	liveEvery  = time.Second      // between two messages of /live
	liveBeat   = 15 * time.Second // so that dead clients are noticed
	writeLimit = 20 * time.Second // a client that does not read is dropped
)

var errTooManyFollowers = errors.New("too many followers")

// admit counts a stream; what it returns must be called at its end when it was
// let in.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) (func(), bool) {
	// Browsers do not lock out the users of the admin socket.
	n, most := &s.followers, s.mostStreams()
	if _, local := peer(r.Context()); local {
		n, most = &s.localFollowers, adminConnections*3/4
	}
	if n.Add(1) > most {
		n.Add(-1)
		w.Header().Set("Retry-After", "30")
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusServiceUnavailable, errTooManyFollowers)
		return nil, false
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	return func() { n.Add(-1) }, true
}

// sse writes to one client, each write with a limit.
type sse struct {
	w   http.ResponseWriter
	out *http.ResponseController
}

func (c sse) send(text string) bool {
	// A recorder in a test has no deadline; every real connection has.
	_ = c.out.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, err := c.w.Write([]byte(text)); err != nil {
		return false
	}
	return c.out.Flush() == nil
}

// follow sends what read returns, now and each time that its channel is closed,
// until the client or the agent goes, or read fails.
func (s *Server) follow(client sse, r *http.Request, read func() (string, <-chan struct{}, error)) {
	alive := time.NewTicker(liveBeat)
	defer alive.Stop()
	for {
		text, next, err := read()
		if err != nil || !client.send(text) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.Source.Ended():
			return
		case <-next:
		case <-alive.C:
			if !client.send(": alive\n\n") {
				return
			}
		}
	}
}

// stateMark names the state that a reader would see now, in this process.
func (s *Server) stateMark() string {
	seq, _ := s.Events.Newest()
	state, _ := s.Source.State()
	return fmt.Sprintf("%s-%x", state, seq)
}

// serveLive says when the page must look again: one message for all changes of
// a second, and none while nothing changes. The page carries no data in them,
// so that there is one way to render. A page whose mark is not of the present
// state gets a message at once.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	done, ok := s.admit(w, r)
	if !ok {
		return
	}
	defer done()
	client := sse{w, http.NewResponseController(w)}
	beat := time.NewTicker(liveBeat)
	defer beat.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	known, text := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("at")), "retry: 2000\n"
	for {
		// Changes that follow at once belong to the same message.
		if text == "" && !wait(r.Context(), s, pause.C) {
			return
		}
		// The channels are taken before the mark: nothing is lost between.
		_, event := s.Events.Newest()
		_, change := s.Source.State()
		if mark := s.stateMark(); mark != known {
			known, text = mark, text+"id: "+mark+"\ndata: changed\n"
		}
		if !client.send(text + "\n") {
			return
		}
		text = ""
		select {
		case <-r.Context().Done():
			return
		case <-s.Source.Ended():
			return
		case <-beat.C:
			text = ": alive\n"
		case <-event:
			pause.Reset(liveEvery)
		case <-change:
			pause.Reset(liveEvery)
		}
	}
}
