package web

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zkagent/zkagent/view"
)

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

// answerOf returns the answer for a group and the status of the wanted members.
func answerOf(g *view.Group, name, status string) (*groupAnswer, error) {
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
	if data, err = encode(a.groupDocument); err != nil {
		return nil, err
	}
	a.data = slices.Concat(data, []byte{'\n'})
	return a, nil
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
	a, err := s.answers.get([2]string{name, status}, g, func() (*groupAnswer, error) { return answerOf(g, name, status) })
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
			if m.Port > 0 {
				list = append(list, target(name, m))
			}
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

func target(group string, m view.Member) targetGroup {
	labels := map[string]string{
		"__meta_zkagent_group": group, "__meta_zkagent_id": m.ID, "__meta_zkagent_status": m.Status,
		"__meta_zkagent_weight": strconv.Itoa(m.Weight), "__meta_zkagent_held": strconv.FormatBool(m.Held),
	}
	for name, value := range m.Labels {
		labels["__meta_zkagent_label_"+labelName(name)] = value
	}
	for name, port := range m.Ports {
		labels["__meta_zkagent_port_"+labelName(name)] = strconv.Itoa(port)
	}
	return targetGroup{Targets: []string{m.Address()}, Labels: labels}
}

// notLabel is what the label names of Prometheus may not have.
var notLabel = regexp.MustCompile(`[^A-Za-z0-9_]`)

func labelName(name string) string { return notLabel.ReplaceAllString(name, "_") }
