package agent

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// taken is a listener of another program.
func taken(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// TestHTTP_PortTaken: a port that another program has keeps the agent from
// nothing but its page; when the settings name another one, it is opened.
func TestHTTP_PortTaken(t *testing.T) {
	b := newBed(t)
	b.tree(map[string]string{"port": "80"})
	other := taken(t)
	c := b.config()
	c.Admin.Socket = filepath.Join(testhelp.ShortDir(t), "s")
	c.HTTP = &web.HTTPConfig{Listen: other.Addr().String()}
	c.Bundles = []apply.Config{b.file("web.conf", `{{ key "web/port" }}`)}
	next := c
	c.Load = func() (Config, error) { return next, nil }
	a := b.start(c)
	a.ready()
	fileIs(t, b.path("web.conf"), "80")
	a.condition(condition.HTTPNotListening, other.Addr().String(), true)
	for _, open := range a.conds.List() {
		if open.Code == "http-not-listening" && (!strings.Contains(open.Text, "http.listen "+other.Addr().String()) || !strings.Contains(open.Text, "another program")) {
			t.Errorf("got %s", open.Text)
		}
	}
	if a.HTTPAddr() != "" {
		t.Errorf("the address is %s", a.HTTPAddr())
	}
	client := web.NewClient(c.Admin.Socket)
	next.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	if err := client.Post(t.Context(), "/reload", nil); err != nil {
		t.Fatal(err)
	}
	a.condition(condition.HTTPNotListening, other.Addr().String(), false)
	eventually(t, "the listener", func() bool { return a.HTTPAddr() != "" })

	// A reload to a port that is taken leaves the listener that is there, and
	// names that the settings add are answered at once.
	next.HTTP = &web.HTTPConfig{Listen: other.Addr().String(), Hosts: []string{"Agent.Example"}}
	if err := client.Post(t.Context(), "/reload", nil); err != nil {
		t.Fatal(err)
	}
	a.condition(condition.HTTPNotListening, other.Addr().String(), true)
	for host, want := range map[string]int{"agent.example": http.StatusOK, "localhost": http.StatusOK, "evil.example": http.StatusForbidden} {
		if code, _, _ := httpGet(t, a, http.MethodGet, "/healthz", map[string]string{"Host": host}); code != want {
			t.Errorf("%s: got %d, want %d", host, code, want)
		}
	}

	next.HTTP = nil
	if err := client.Post(t.Context(), "/reload", nil); err != nil {
		t.Fatal(err)
	}
	a.condition(condition.HTTPNotListening, other.Addr().String(), false)
	eventually(t, "no listener", func() bool { return a.HTTPAddr() == "" })
}
