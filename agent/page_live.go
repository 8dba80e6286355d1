package agent

import (
	"errors"
	"net/http"
	"time"
)

// How the streams of the listeners are bounded.
const (
	maxFollowers = 100              // open streams of one listener
	liveEvery    = time.Second      // between two messages of /live
	liveBeat     = 15 * time.Second // so that dead clients are noticed
	writeLimit   = 20 * time.Second // a client that does not read is dropped
)

var errTooManyFollowers = errors.New("too many followers")

// admit counts a stream; what it returns must be called at its end when it was
// let in.
func (a *Agent) admit(w http.ResponseWriter, r *http.Request) (func(), bool) {
	// Whoever may use the admin socket is not locked out by browsers.
	n := &a.followers
	if peer(r.Context()) != "" {
		n = &a.localFollowers
	}
	if n.Add(1) > maxFollowers {
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

func (s sse) send(text string) bool {
	// A recorder in a test has no deadline; every real connection has.
	_ = s.out.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, err := s.w.Write([]byte(text)); err != nil {
		return false
	}
	return s.out.Flush() == nil
}

// serveLive tells the page when to look again: one message for all changes of
// a second, and none while nothing changes. The page carries no data in them,
// so that there is one way to render.
func (a *Agent) serveLive(w http.ResponseWriter, r *http.Request) {
	done, ok := a.admit(w, r)
	if !ok {
		return
	}
	defer done()
	client := sse{w, http.NewResponseController(w)}
	beat := time.NewTicker(liveBeat)
	defer beat.Stop()
	pause := time.NewTimer(liveEvery)
	defer pause.Stop()
	_, event := a.events.since(0)
	change := a.loop.snapshot.Load().next
	if !client.send("retry: 2000\n\n") {
		return
	}
	for {
		text := ": alive\n\n"
		select {
		case <-r.Context().Done():
			return
		case <-a.loop.done:
			return
		case <-event:
			text = ""
		case <-change:
			text = ""
		case <-beat.C:
		}
		if text == "" {
			// What follows at once belongs to the same message.
			pause.Reset(liveEvery)
			select {
			case <-r.Context().Done():
				return
			case <-a.loop.done:
				return
			case <-pause.C:
			}
			_, event = a.events.since(0)
			change = a.loop.snapshot.Load().next
			text = "data: changed\n\n"
		}
		if !client.send(text) {
			return
		}
	}
}
