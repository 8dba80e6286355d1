package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/view"
)

// order is the body of a POST: a JSON object of strings.
type order map[string]string

// adminMux is what the unix socket serves: reading, and every order. Whoever
// may open the socket may give them; peers are named in the log.
func (a *Agent) adminMux() *http.ServeMux {
	mux := http.NewServeMux()
	a.readRoutes(mux)
	a.post(mux, "/reload", func(ctx context.Context, _ order) error { return a.Reload(ctx) })
	a.post(mux, "/render", func(ctx context.Context, _ order) error { a.RenderAll(ctx); return nil })
	a.post(mux, "/leave", func(context.Context, order) error { a.Leave(); return nil })
	a.post(mux, "/upgrade", func(context.Context, order) error { a.Upgrade(); return nil })
	a.post(mux, "/resign", func(ctx context.Context, o order) error { return a.Resign(ctx, o["name"]) })
	a.post(mux, "/maint", a.maint)
	a.post(mux, "/accept", func(_ context.Context, o order) error { return a.Accept(o["name"], o["group"]) })
	a.post(mux, "/hooks/run", func(ctx context.Context, o order) error { return a.RunHook(ctx, o["name"]) })
	a.post(mux, "/check", a.reportCheck)
	mux.HandleFunc("GET /debug/pprof/{name}", serveProfile)
	return mux
}

// readRoutes is what both listeners serve.
func (a *Agent) readRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.Status()) })
	mux.HandleFunc("GET /hooks", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.HookStatus()) })
	mux.HandleFunc("GET /members", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.Members()) })
	mux.HandleFunc("GET /fleet", func(w http.ResponseWriter, r *http.Request) { answer(w, a.Fleet(r.Context())) })
	mux.HandleFunc("GET /events", a.serveEvents)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", a.serveHealth)
	mux.HandleFunc("GET /readyz", a.serveReady)
}

// post serves one order.
func (a *Agent) post(mux *http.ServeMux, path string, fn func(context.Context, order) error) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") != "application/json" {
			refuse(w, http.StatusUnsupportedMediaType, errors.New("the body must be JSON"))
			return
		}
		o := order{}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil {
			refuse(w, http.StatusBadRequest, errors.New("the body is not a JSON object of strings"))
			return
		}
		err := fn(r.Context(), o)
		log := a.log.With("order", path, "name", o["name"], "peer", peer(r.Context()))
		if err != nil {
			log.Warn("order refused", "err", err)
			refuse(w, http.StatusUnprocessableEntity, err)
			return
		}
		log.Info("order carried out")
		if path != "/check" { // those come by the second.
			a.events.add(Event{Kind: "order", Subject: strings.TrimSpace(path[1:] + " " + o["name"]), Text: orderText(o)})
		}
		answer(w, map[string]bool{"ok": true})
	})
}

// orderText is what an order said beside its name, for the events.
func orderText(o order) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(o)) {
		if k != "name" && o[k] != "" {
			parts = append(parts, k+"="+o[k])
		}
	}
	return strings.Join(parts, " ")
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

// serveHealth says that the process lives and its loop turns.
func (a *Agent) serveHealth(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	select {
	case a.loop.pings <- struct{}{}:
		_, _ = w.Write([]byte("ok\n"))
	case <-a.loop.done:
		http.Error(w, "the loop has ended", http.StatusServiceUnavailable)
	case <-ctx.Done():
		http.Error(w, "the loop does not turn", http.StatusServiceUnavailable)
	}
}

// serveReady says that the first useful state is reached.
func (a *Agent) serveReady(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-a.loop.ready:
		_, _ = w.Write([]byte("ready\n"))
	default:
		http.Error(w, "starting: "+a.Summary(), http.StatusServiceUnavailable)
	}
}

// serveEvents lists recent events, or follows them as server-sent events.
func (a *Agent) serveEvents(w http.ResponseWriter, r *http.Request) {
	since, _ := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		since, _ = strconv.ParseInt(id, 10, 64)
	}
	if r.URL.Query().Get("follow") == "" {
		list, _ := a.events.since(since)
		if list == nil {
			list = []Event{}
		}
		answer(w, list)
		return
	}
	done, ok := a.admit(w, r)
	if !ok {
		return
	}
	defer done()
	a.stream(sse{w, http.NewResponseController(w)}, r, since)
}

// stream writes events until the client or the agent goes.
func (a *Agent) stream(client sse, r *http.Request, since int64) {
	alive := time.NewTicker(liveBeat)
	defer alive.Stop()
	for {
		list, next := a.events.since(since)
		var text strings.Builder
		for _, e := range list {
			data, err := json.Marshal(e)
			if err != nil {
				return
			}
			fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", e.Seq, data)
			since = e.Seq
		}
		if !client.send(text.String()) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-a.loop.done:
			return
		case <-next:
		case <-alive.C:
			if !client.send(": alive\n\n") {
				return
			}
		}
	}
}

// Members returns the members of every group, as the templates see them.
func (a *Agent) Members() map[string][]view.Member {
	v := a.loop.snapshot.Load().view
	all := map[string][]view.Member{}
	for _, s := range v.Sources() {
		if g, ok := v.Group(s.Name); ok && s.Kind == view.KindGroup {
			all[g.Name] = append([]view.Member{}, g.Members...)
		}
		if set, ok := v.Groups(s.Name); ok && s.Kind == view.KindGroups {
			for _, g := range set.Groups {
				all[set.Name+"/"+g.Name] = append([]view.Member{}, g.Members...)
			}
		}
	}
	return all
}

// Resign makes this agent give up a term, or its place in the line.
func (a *Agent) Resign(ctx context.Context, name string) error {
	c, ok := a.sup.value("election", name).(*election.Candidate)
	if !ok {
		return fmt.Errorf("election %q: %w", name, errUnknownName)
	}
	return c.Resign(ctx)
}

// Accept makes the present members of a group the ones that are believed. For
// a set of groups, group names one of them.
func (a *Agent) Accept(name, group string) error {
	if g, ok := a.sup.value("group", name).(*registry.Group); ok {
		g.Accept()
		return nil
	}
	if g, ok := a.sup.value("groups", name).(*registry.Groups); ok {
		if !g.Accept(group) {
			return fmt.Errorf("groups %s has no group %q", name, group)
		}
		return nil
	}
	return fmt.Errorf("group %q: %w", name, errUnknownName)
}

// maint switches the maintenance of a service, or without a name that of the
// host as rollouts see it: name, on ("true" or "false"),
// reason, for (a duration after which it ends by itself) and drain (empty: no;
// "service": as the service does when it leaves; else a duration).
func (a *Agent) maint(_ context.Context, o order) error {
	if o["name"] == "" {
		return a.maintainHost(o)
	}
	r, ok := a.sup.value("service", o["name"]).(*registry.Registrar)
	if !ok {
		return fmt.Errorf("service %q: %w", o["name"], errUnknownName)
	}
	m := registry.Maintenance{Reason: o["reason"], Drain: o["drain"] != ""}
	var err error
	if m.On, err = strconv.ParseBool(o["on"]); err != nil {
		return fmt.Errorf("on is %q, not true or false", o["on"])
	}
	if o["for"] != "" {
		d, err := time.ParseDuration(o["for"])
		if err != nil || d <= 0 {
			return fmt.Errorf("for is %q, not a duration", o["for"])
		}
		m.Until = time.Now().Add(d)
	}
	if m.Drain && o["drain"] != "service" {
		if m.DrainFor, err = time.ParseDuration(o["drain"]); err != nil || m.DrainFor <= 0 {
			return fmt.Errorf("drain is %q, not a duration", o["drain"])
		}
	}
	return r.SetMaintenance(m)
}

// reportCheck gives a ttl check its state: name, check, state, output.
func (a *Agent) reportCheck(ctx context.Context, o order) error {
	r, ok := a.sup.value("service", o["name"]).(*registry.Registrar)
	if !ok {
		return fmt.Errorf("service %q: %w", o["name"], errUnknownName)
	}
	return r.Report(ctx, o["check"], registry.Report(o["state"]), o["output"])
}

// wildcard reports whether an address to listen on is every address.
func wildcard(host string) bool {
	if host == "" || host == "*" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}
