package web

import (
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"
)

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
