package memzk

import (
	"errors"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// attempt opens a connection and writes down what the server answers.
func (r *runner) attempt(what string, o raw.Options) *raw.Conn {
	r.t.Helper()
	c, err := raw.Dial(r.t.Context(), r.addr, o)
	switch {
	case errors.Is(err, raw.ErrRefused):
		r.logf("%s: session is gone\n", what)
	case err != nil:
		r.logf("%s: connection ended\n", what)
	default:
		r.logf("%s: timeout %d, read-only byte %v, password of %d\n",
			what, c.Session.Timeout, c.Session.ReadOnly != nil, len(c.Session.Password))
	}
	return c
}

// handshakeProgram opens and takes up sessions in all ways that there are.
func handshakeProgram(r *runner) {
	for _, timeout := range []time.Duration{time.Millisecond, 10 * time.Second, time.Hour} {
		for _, old := range []bool{false, true} {
			c := r.attempt("new session", raw.Options{Timeout: timeout, OldClient: old})
			if c != nil {
				c.Close()
			}
		}
	}
	a := r.conn("a")
	r.create("a", jute.OpCreate, "/e", "", jute.FlagEphemeral)
	id, password := a.Session.SessionID, a.Session.Password
	r.attempt("unknown session", raw.Options{SessionID: 77, Password: password})
	r.attempt("later zxid", raw.Options{SessionID: id, Password: password, LastZxidSeen: 1 << 40})
	r.ping("a")
	r.attempt("later zxid, no session", raw.Options{LastZxidSeen: 1 << 40})
	r.attempt("wrong password", raw.Options{SessionID: id, Password: make([]byte, 16)})
	_, err := a.ReadFrame()
	r.logf("the connection that had the session ended: %v\n", err != nil)
	r.attempt("short password", raw.Options{SessionID: id, Password: password[:4]})
	c := r.attempt("right password, another timeout", raw.Options{SessionID: id, Password: password, Timeout: 20 * time.Second, LastZxidSeen: a.Zxid})
	if c == nil {
		r.t.Fatal("the session cannot be taken up")
	}
	a.Drop()
	r.conns["a"] = c
	c.Zxid = a.Zxid
	r.exists("a", "/e", true)
	r.create("b", jute.OpCreate, "/other", "", 0)
	r.close("a")
	r.attempt("closed session", raw.Options{SessionID: id, Password: password})
	r.exists("b", "/e", false)
}

// usageProgram looks at the znode in which a server keeps what a quota uses.
func usageProgram(r *runner) {
	quota := "/zookeeper/quota" + r.root
	for _, p := range []string{quota, quota + "/q"} {
		_, _ = r.conn("a").Create(p, nil, 0)
	}
	stats := quota + "/q/zookeeper_stats"
	r.create("a", jute.OpCreate, "/q", "abc", 0)
	r.create("a", jute.OpCreate, "/q/x", "de", 0)
	r.create("a", jute.OpCreate, quota+"/q/zookeeper_limits", "count=5,bytes=100", 0)
	r.get("a", stats, false)
	_, _ = r.conn("a").Create(stats, []byte("count=0,bytes=0"), 0)
	r.get("a", stats, true)
	r.create("a", jute.OpCreate, "/q/y", "12345", 0)
	r.get("a", stats, false)
	r.set("a", "/q/y", "1", -1)
	r.get("a", stats, false)
	r.multi("a", jute.OpMulti, r.part(jute.OpDelete, "/q/y", int32(-1)), r.part(jute.OpSetData, "/q", []byte("abcdefgh"), int32(-1)))
	r.get("a", stats, false)
	for _, data := range []string{"count=1,bytes=2", "count=7,bytes=9"} {
		r.set("a", stats, data, -1)
		r.create("a", jute.OpCreate, "/q/z", "12345", 0)
		r.get("a", stats, false)
		r.delete("a", "/q/z", -1)
		r.get("a", stats, false)
	}
	r.delete("a", quota+"/q/zookeeper_limits", -1)
	r.create("a", jute.OpCreate, "/q/z", "12345", 0)
	r.get("a", stats, false)
}

// saslProgram sends a token to a server that does not do SASL.
func saslProgram(r *runner) {
	for _, token := range [][]byte{[]byte("token"), {}} {
		d := r.call("a", jute.OpSASL, token)
		if d != nil {
			r.logf(" %d bytes, nil=%v", d.Len(), d.Buffer() == nil)
		}
		r.end(d)
	}
	r.exists("a", "/", false)
}
