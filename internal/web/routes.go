package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/zkagent/zkagent/internal/blame"
	"github.com/zkagent/zkagent/internal/event"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/view"
)

// adminMux is what the unix socket serves: reading, and every order. Each user who
// may open the socket may give orders; the log names the peer.
func (s *Server) adminMux() *http.ServeMux {
	mux := http.NewServeMux()
	s.readRoutes(mux, func() reader { return reader{s, true} })
	for path, fn := range s.Orders {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { s.order(w, r, path, fn) })
	}
	// The files of `zkagent blame` may have texts that not everybody may read.
	mux.HandleFunc("GET /blame", func(w http.ResponseWriter, r *http.Request) {
		q, err := blame.ParseQuery(r.URL.Query())
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		files, err := s.Source.Blame(r.Context(), q)
		if err != nil {
			refuse(w, http.StatusUnprocessableEntity, err)
			return
		}
		answer(w, files)
	})
	mux.HandleFunc("GET /debug/pprof/{name}", serveProfile)
	return mux
}

func (s *Server) readRoutes(mux *http.ServeMux, to func() reader) {
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, to().status()) })
	mux.HandleFunc("GET /hooks", func(w http.ResponseWriter, _ *http.Request) { answer(w, to().status().Hooks) })
	mux.HandleFunc("GET /members", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Source.Members()) })
	mux.HandleFunc("GET /fleet", func(w http.ResponseWriter, r *http.Request) { answer(w, s.readFleet(r.Context())) })
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) { s.serveEvents(w, r, to) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { // the process lives and its loop turns
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if err := s.Source.Ping(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { // the first useful state is reached
		select {
		case <-s.Source.Ready():
			_, _ = w.Write([]byte("ready\n"))
		default:
			http.Error(w, "starting: "+s.Source.Status().Summary, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/groups", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"apiVersion": "v1", "groups": append([]string{}, s.Source.GroupNames()...)})
	})
	mux.HandleFunc("GET /v1/groups/{name...}", s.serveGroup)
	mux.HandleFunc("GET /sd/prometheus", s.servePrometheus)
}

func (s *Server) order(w http.ResponseWriter, r *http.Request, path string, fn Order) {
	if r.Header.Get("Content-Type") != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, errors.New("the body must be JSON"))
		return
	}
	o := Args{}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil {
		refuse(w, http.StatusBadRequest, errors.New("the body is not a JSON object of strings"))
		return
	}
	err := fn(r.Context(), o)
	log, by := s.Logger.With("order", path, "name", o["name"]), ""
	if from, known := peer(r.Context()); known {
		log, by = log.With("peer", fmt.Sprintf("uid %d pid %d", from.uid, from.pid)), from.name()
	}
	if err != nil {
		log.Warn("order refused", "err", err)
		refuse(w, http.StatusUnprocessableEntity, err)
		return
	}
	log.Info("order carried out")
	if path != "/check" { // those come by the second.
		var said []string // beside its name
		for _, k := range slices.Sorted(maps.Keys(o)) {
			if k != "name" && o[k] != "" {
				said = append(said, k+"="+o[k])
			}
		}
		s.Events.Add(event.Event{Kind: "order", Subject: strings.TrimSpace(path[1:] + " " + o["name"]), Text: strings.Join(said, " "), By: by})
	}
	answer(w, map[string]bool{"ok": true})
}

// encode is v as JSON that no terminal obeys: others write into ZooKeeper.
func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	return term.EscapeJSON(data), err
}

// answer writes a document. An object begins with the version of the format, as on
// the command line; a list is what other programs ask for.
func answer(w http.ResponseWriter, v any) {
	data, err := encode(v)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	if fields, object := bytes.CutPrefix(data, []byte("{\"")); object && !bytes.HasPrefix(fields, []byte("apiVersion\"")) {
		data = append([]byte(`{"apiVersion":"v1","`), fields...)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n')) //nolint:gosec // JSON
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	data, _ := encode(map[string]string{"apiVersion": "v1", "error": err.Error()}) // Texts are always JSON.
	_, _ = w.Write(append(data, '\n'))
}

func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request, to func() reader) {
	since, _ := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		since, _ = strconv.ParseInt(id, 10, 64)
	}
	if r.URL.Query().Get("follow") == "" {
		list, _ := to().events(since)
		answer(w, append([]event.Event{}, list...))
		return
	}
	s.follow(w, r, 0, func() (string, changed, error) {
		list, next := to().events(since)
		var text strings.Builder
		for _, e := range list {
			data, err := encode(e)
			if err != nil {
				return "", changed{}, err
			}
			fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", e.Seq, data)
			since = e.Seq
		}
		return text.String(), changed{next}, nil
	})
}

// serveProfile writes a runtime profile: heap, goroutine, ... or cpu. It is
// served on the unix socket alone, and without net/http/pprof, which would put
// itself on the default mux of the process.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	debug, _ := strconv.Atoi(r.URL.Query().Get("debug"))
	if name != "cpu" {
		p := pprof.Lookup(name)
		if p == nil {
			http.NotFound(w, r)
			return
		}
		_ = p.WriteTo(w, debug)
		return
	}
	seconds, err := strconv.Atoi(r.URL.Query().Get("seconds"))
	if err != nil || seconds < 1 || seconds > 60 {
		seconds = 10
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
	case <-timer.C:
	}
}

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

// changed are channels that are closed when there is something new; nil: never.
type changed [2]<-chan struct{}

// follow sends the server-sent events that read returns, now and each time that one of its
// channels is closed, until the client or the agent goes, or read fails. Changes within the
// pause belong to the same event.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, pause time.Duration, read func() (string, changed, error)) {
	done, ok := s.admit(w, r)
	if !ok {
		return
	}
	defer done()
	out := http.NewResponseController(w)
	send := func(text string) bool {
		// A recorder in a test has no deadline; every real connection has.
		_ = out.SetWriteDeadline(time.Now().Add(writeLimit))
		_, err := io.WriteString(w, text)
		return err == nil && out.Flush() == nil
	}
	alive := time.NewTicker(liveBeat)
	defer alive.Stop()
	for {
		text, next, err := read()
		if err != nil || !send(text) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.Source.Ended():
			return
		case <-next[0]:
		case <-next[1]:
		case <-alive.C:
			if !send(": alive\n\n") {
				return
			}
		}
		timer := time.NewTimer(pause)
		stays := wait(r.Context(), s, timer.C)
		if timer.Stop(); !stays {
			return
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
	known, head := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("at")), "retry: 2000\n"
	s.follow(w, r, liveEvery, func() (string, changed, error) {
		text := head
		head = ""
		// The channels are taken before the mark: nothing is lost between.
		_, event := s.Events.Newest()
		_, change := s.Source.State()
		if mark := s.stateMark(); mark != known {
			known, text = mark, text+"id: "+mark+"\ndata: changed\n"
		}
		if text != "" {
			text += "\n"
		}
		return text, changed{event, change}, nil
	})
}

// Bounds of a query that waits for a change.
const (
	defaultGroupWait = 5 * time.Minute
	maxGroupWait     = 10 * time.Minute
)

type groupDocument struct {
	APIVersion string        `json:"apiVersion"`
	Group      string        `json:"group"`
	Status     string        `json:"status"` // which members: up, any, ...
	Index      string        `json:"index"`  // differs when the members do
	Held       bool          `json:"held"`   // the guard keeps members that are gone
	Members    []view.Member `json:"members"`
}

type groupAnswer struct {
	groupDocument

	data []byte // ends in a line break
}

func (a *groupAnswer) answer(w http.ResponseWriter) {
	w.Header().Set("X-Zkagent-Index", a.Index)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(a.data) //nolint:gosec // JSON
}

// targetGroup is one entry of Prometheus' HTTP service discovery.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// serveGroup answers with the members of one group. With index it waits until
// they differ from those of that index; as server-sent events it continues.
func (s *Server) serveGroup(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	name, status, index := r.PathValue("name"), q.Get("status"), q.Get("index")
	limit, err := groupWait(q.Get("wait"))
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	doc, next, code, err := s.groupNow(name, status)
	if err != nil {
		refuse(w, code, err)
		return
	}
	stream := strings.Contains(r.Header.Get("Accept"), "text/event-stream")
	if !stream && doc.Index != index {
		doc.answer(w)
		return
	}
	if stream { // the group now and at each change
		sent := ""
		s.follow(w, r, 0, func() (string, changed, error) {
			doc, next, _, err := s.groupNow(name, status)
			if err != nil || doc.Index == sent {
				return "", changed{next}, err
			}
			sent = doc.Index
			return fmt.Sprintf("id: %s\nevent: members\ndata: %s\n", doc.Index, doc.data), changed{next}, nil
		})
		return
	}
	done, ok := s.admit(w, r)
	if !ok {
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	// The limit of the listener counts from the request, which may wait for longer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + writeLimit))
	for err == nil && doc.Index == index && wait(ctx, s, next) {
		doc, next, code, err = s.groupNow(name, status)
	}
	if err != nil {
		refuse(w, code, err)
		return
	}
	doc.answer(w)
}

// groupWait reads how long a query may wait: a duration, or seconds.
func groupWait(text string) (time.Duration, error) {
	if text == "" {
		return defaultGroupWait, nil
	}
	wait, err := time.ParseDuration(text)
	if seconds, perr := strconv.Atoi(text); perr == nil && seconds >= 0 {
		wait, err = time.Duration(min(seconds, int(maxGroupWait/time.Second)))*time.Second, nil
	}
	if err != nil || wait < 0 {
		return 0, fmt.Errorf("wait=%q is not a duration, as 30s", text)
	}
	return min(wait, maxGroupWait), nil
}

// wait waits for the channel; false when ctx or the agent ends first.
func wait[T any](ctx context.Context, s *Server, next <-chan T) bool {
	select {
	case <-next:
		return true
	case <-s.Source.Ended():
	case <-ctx.Done():
	}
	return false
}

// groupNow is a group as it is, and a channel that is closed at the next state
// of the agent.
func (s *Server) groupNow(name, status string) (*groupAnswer, <-chan struct{}, int, error) {
	_, next := s.Source.State()
	g, known := s.Source.Group(name)
	switch {
	case !known:
		return nil, nil, http.StatusNotFound, fmt.Errorf("there is no group %q", name)
	case g == nil:
		return nil, nil, http.StatusServiceUnavailable, fmt.Errorf("group %q has not reported yet", name)
	}
	// A thousand readers who wait for one group cost one encoding.
	a, err := s.answers.get([2]string{name, status}, g, func() (*groupAnswer, error) {
		members, ok := view.WithStatus(g.Members, status)
		if !ok {
			return nil, fmt.Errorf("status=%q is not one of %s", status, strings.Join(view.StatusWords, ", "))
		}
		a := &groupAnswer{groupDocument: groupDocument{
			APIVersion: "v1", Group: name, Status: cmp.Or(status, view.StatusUp), Held: !g.Holding.IsZero(), Members: append([]view.Member{}, members...),
		}}
		data, err := encode(a.groupDocument)
		if err != nil {
			return nil, err
		}
		sum := fnv.New64a()
		_, _ = sum.Write(data)
		a.Index = strconv.FormatUint(sum.Sum64(), 16)
		data, err = encode(a.groupDocument)
		a.data = slices.Concat(data, []byte{'\n'})
		return a, err
	})
	return a, next, http.StatusBadRequest, err
}

// servePrometheus lists the targets of one group, of the groups of a set, or of
// all, as Prometheus' http_sd_configs reads them.
func (s *Server) servePrometheus(w http.ResponseWriter, r *http.Request) {
	names, err := s.targetsOf(r)
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	status := r.URL.Query().Get("status")
	list := []targetGroup{}
	for _, name := range names {
		doc, _, code, err := s.groupNow(name, status)
		if err != nil {
			// Prometheus keeps the targets that it has when it gets an error.
			refuse(w, code, err)
			return
		}
		for _, m := range doc.Members {
			if m.Port <= 0 {
				continue
			}
			labels := map[string]string{
				"__meta_zkagent_group": name, "__meta_zkagent_id": m.ID, "__meta_zkagent_status": m.Status,
				"__meta_zkagent_weight": strconv.Itoa(m.Weight), "__meta_zkagent_held": strconv.FormatBool(m.Held),
			}
			for name, value := range m.Labels {
				labels["__meta_zkagent_label_"+labelName(name)] = value
			}
			for name, port := range m.Ports {
				labels["__meta_zkagent_port_"+labelName(name)] = strconv.Itoa(port)
			}
			list = append(list, targetGroup{Targets: []string{m.Address()}, Labels: labels})
		}
	}
	answer(w, list)
}

func (s *Server) targetsOf(r *http.Request) ([]string, error) {
	q := r.URL.Query()
	switch {
	case q.Has("group"):
		return q["group"], nil
	case !q.Has("groups"):
		return s.Source.GroupNames(), nil
	}
	set := q.Get("groups")
	if !s.Source.GroupSet(set) {
		return nil, fmt.Errorf("there is no groups block %q", set)
	}
	return slices.DeleteFunc(s.Source.GroupNames(), func(n string) bool { return !strings.HasPrefix(n, set+"/") }), nil
}

// notLabel is what the label names of Prometheus may not have.
var notLabel = regexp.MustCompile(`[^A-Za-z0-9_]`)

func labelName(name string) string { return notLabel.ReplaceAllString(name, "_") }
