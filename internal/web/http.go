package web

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// contentPolicy lets the page use nothing but what the agent serves itself.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// Handler is what the TCP listener serves: reading only.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.readRoutes(mux, s.public)
	s.pageRoutes(mux)
	return mux
}

// guarded refuses what a browser could be tricked into: names that are not
// ours (DNS rebinding), and everything that is not reading.
func (s *Server) guarded(listen string, next http.Handler) http.Handler {
	own := []string{"localhost", "127.0.0.1", "::1"}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		own = append(own, host)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY")
		if host := hostOf(r.Host); !slices.Contains(own, host) && !s.hostAllowed(host) {
			http.Error(w, "this name is not one of the agent's; add it to http.hosts", http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
			http.Error(w, "requests from other sites are refused", http.StatusForbidden)
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			http.Error(w, "requests from other sites are refused", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "this listener is for reading; orders go over the admin socket", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostAllowed reports whether the settings in use name the host.
func (s *Server) hostAllowed(host string) bool {
	c := s.Source.HTTP()
	return c != nil && slices.ContainsFunc(c.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// hostOf is the name in a Host header, without port and brackets.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func sameOrigin(origin, host string) bool {
	_, rest, ok := strings.Cut(origin, "://")
	return ok && strings.EqualFold(rest, host)
}
