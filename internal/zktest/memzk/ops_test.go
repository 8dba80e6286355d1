package memzk

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/raw"
)

// The methods below send one request each and write down all of its reply.

func (r *runner) create(name string, op int32, path, data string, flags int32, more ...any) string {
	r.t.Helper()
	return r.createACL(name, op, path, data, flags, raw.OpenACL, more...)
}

func (r *runner) createACL(name string, op int32, path, data string, flags int32, acl []jute.ACL, more ...any) string {
	r.t.Helper()
	fields := append([]any{r.path(path), []byte(data), acl, flags}, more...)
	d := r.call(name, op, fields...)
	created := ""
	if d != nil {
		created = d.String()
		r.logf(" %s", r.strip(created))
		if op != jute.OpCreate {
			r.logf(" %s", r.stat(r.decodeStat(d)))
		}
	}
	r.end(d)
	return created
}

func (r *runner) decodeStat(d *jute.Decoder) jute.Stat {
	var s jute.Stat
	_ = d.Get(&s)
	return s
}

func (r *runner) delete(name, path string, version int32) {
	r.t.Helper()
	r.end(r.call(name, jute.OpDelete, r.path(path), version))
}

func (r *runner) set(name, path, data string, version int32) {
	r.t.Helper()
	r.statReply(r.call(name, jute.OpSetData, r.path(path), []byte(data), version))
}

func (r *runner) statReply(d *jute.Decoder) {
	r.t.Helper()
	if d != nil {
		r.logf(" %s", r.stat(r.decodeStat(d)))
	}
	r.end(d)
}

func (r *runner) exists(name, path string, watch bool) {
	r.t.Helper()
	r.statReply(r.call(name, jute.OpExists, r.path(path), watch))
}

func (r *runner) get(name, path string, watch bool) {
	r.t.Helper()
	d := r.call(name, jute.OpGetData, r.path(path), watch)
	if d != nil {
		data := d.Buffer()
		r.logf(" %q nil=%v", data, data == nil)
	}
	r.statReply(d)
}

// children writes the names down in order, because a real server has none.
func (r *runner) children(name, path string, watch, stat bool) {
	r.t.Helper()
	op := jute.OpGetChildren
	if stat {
		op = jute.OpGetChildren2
	}
	d := r.call(name, op, r.path(path), watch)
	if d != nil {
		names := d.Strings()
		slices.Sort(names)
		r.logf(" %q", names)
	}
	if stat {
		r.statReply(d)
	} else {
		r.end(d)
	}
}

func (r *runner) getACL(name, path string) {
	r.t.Helper()
	d := r.call(name, jute.OpGetACL, r.path(path))
	if d != nil {
		var acl []jute.ACL
		_ = d.Get(&acl)
		r.logf(" %v", acl)
	}
	r.statReply(d)
}

func (r *runner) setACL(name, path string, version int32, acl ...jute.ACL) {
	r.t.Helper()
	r.statReply(r.call(name, jute.OpSetACL, r.path(path), acl, version))
}

func (r *runner) addWatch(name, path string, mode int32) {
	r.t.Helper()
	d := r.call(name, jute.OpAddWatch, r.path(path), mode)
	if d != nil {
		r.logf(" err %d", d.Int32())
	}
	r.end(d)
}

// watches sends checkWatches or removeWatches.
func (r *runner) watches(name string, op int32, path string, kind int32) {
	r.t.Helper()
	r.end(r.call(name, op, r.path(path), kind))
}

func (r *runner) ephemerals(name, prefix string) {
	r.t.Helper()
	d := r.call(name, jute.OpGetEphemerals, r.path(prefix))
	if d != nil {
		paths := d.Strings()
		slices.Sort(paths)
		for i := range paths {
			paths[i] = r.strip(paths[i])
		}
		r.logf(" %q", paths)
	}
	r.end(d)
}

func (r *runner) count(name, path string) {
	r.t.Helper()
	d := r.call(name, jute.OpGetAllChildrenNumber, r.path(path))
	if d != nil {
		r.logf(" %d", d.Int32())
	}
	r.end(d)
}

func (r *runner) auth(name, scheme, credential string) {
	r.t.Helper()
	c := r.conn(name)
	reply, err := c.CallXid(jute.XidAuth, jute.OpAuth, raw.Body(int32(0), scheme, []byte(credential)))
	r.logf("%s auth: code %d zxid=%d body=%d err=%v\n", name, reply.Err, reply.Zxid, len(reply.Body), err != nil)
}

func (r *runner) whoAmI(name string) {
	r.t.Helper()
	d := r.call(name, jute.OpWhoAmI)
	if d != nil {
		var who []string
		for range d.Int32() {
			who = append(who, d.String()+"="+d.String())
		}
		slices.Sort(who)
		r.logf(" %q", who)
	}
	r.end(d)
}

// multiPart is one operation of a multi.
type multiPart struct {
	op     int32
	fields []any
}

func (r *runner) part(op int32, path string, fields ...any) multiPart {
	return multiPart{op, append([]any{r.path(path)}, fields...)}
}

func (r *runner) multi(name string, op int32, parts ...multiPart) {
	r.t.Helper()
	var body []byte
	for _, p := range parts {
		body = append(body, raw.Body(p.op, false, int32(-1))...)
		body = append(body, raw.Body(p.fields...)...)
	}
	body = append(body, raw.Body(int32(-1), true, int32(-1))...)
	c := r.conn(name)
	before := c.Zxid
	reply, err := c.Call(op, body)
	if err != nil {
		r.t.Fatalf("multi: %v", err)
	}
	r.logf("%s %s: code %d zxid+%d", name, jute.OpName(op), reply.Err, c.Zxid-before)
	d := jute.NewDecoder(reply.Body)
	for d.Err() == nil && d.Len() > 0 {
		if r.multiResult(d) {
			break
		}
	}
	r.end(d)
}

// multiResult writes one result down and reports whether it was the last.
func (r *runner) multiResult(d *jute.Decoder) bool {
	r.t.Helper()
	var h jute.MultiHeader
	_ = d.Get(&h)
	r.logf(" [%d %v %d", h.Type, h.Done, h.Err)
	if h.Done {
		r.logf("]")
		return true
	}
	switch h.Type {
	case jute.OpError:
		r.logf(" %d", d.Int32())
	case jute.OpCreate:
		r.logf(" %s", r.strip(d.String()))
	case jute.OpCreate2:
		r.logf(" %s %s", r.strip(d.String()), r.stat(r.decodeStat(d)))
	case jute.OpSetData:
		r.logf(" %s", r.stat(r.decodeStat(d)))
	case jute.OpGetData:
		r.logf(" %q %s", d.Buffer(), r.stat(r.decodeStat(d)))
	case jute.OpGetChildren:
		names := d.Strings()
		slices.Sort(names)
		r.logf(" %q", names)
	case jute.OpDelete, jute.OpCheck:
	default:
		r.logf(" unknown type")
	}
	r.logf("]")
	return false
}

// setWatches takes watches up as a client does after a reconnect. The zxid is
// given as a distance from the last one that the connection has seen.
func (r *runner) setWatches(name string, back int64, lists ...[]string) {
	r.t.Helper()
	op := jute.OpSetWatches
	if len(lists) > 3 {
		op = jute.OpSetWatches2
	}
	c := r.conn(name)
	fields := []any{c.Zxid - back}
	for _, list := range lists {
		full := make([]string, len(list))
		for i, p := range list {
			full[i] = r.path(p)
		}
		fields = append(fields, full)
	}
	before := c.Zxid
	reply, err := c.CallXid(jute.XidSetWatches, op, raw.Body(fields...))
	r.logf("%s %s: xid %d code %d zxid+%d body=%d err=%v\n", name, jute.OpName(op), reply.Xid, reply.Err, c.Zxid-before, len(reply.Body), err != nil)
	r.events()
}

// reconnect takes the session up on a new connection. The old one is closed
// afterwards: the server has then ended it, with its watches, before it answers;
// a connection that is being closed at that moment may still be watching.
func (r *runner) reconnect(name string) {
	r.t.Helper()
	old := r.conn(name)
	c := r.open(name, raw.Options{Timeout: time.Minute, SessionID: old.Session.SessionID, Password: old.Session.Password, LastZxidSeen: old.Zxid})
	old.Drop()
	c.Zxid = old.Zxid
	r.logf("%s reconnect: same session %v, same password %v\n", name,
		c.Session.SessionID == old.Session.SessionID, slices.Equal(c.Session.Password, old.Session.Password))
}

// close ends the session; events that the others got are sorted, because the
// order in which a session's ephemerals are deleted is not defined.
func (r *runner) close(name string) {
	r.t.Helper()
	c := r.conn(name)
	before := c.Zxid
	reply, err := c.Call(jute.OpClose, nil)
	delete(r.conns, name)
	r.logf("%s close: code %d zxid+%d err=%v\n", name, reply.Err, c.Zxid-before, err != nil)
	own := make([]string, 0, len(c.Events))
	for _, ev := range c.TakeEvents() {
		own = append(own, fmt.Sprintf("%d %s", ev.Type, r.strip(ev.Path)))
	}
	slices.Sort(own)
	r.logf("  own events %s\n", strings.Join(own, ", "))
	_, err = c.ReadFrame()
	r.logf("  connection ended %v\n", err != nil)
	c.Drop()
	mark := r.out.Len()
	r.events()
	lines := strings.Split(strings.TrimSuffix(r.out.String()[mark:], "\n"), "\n")
	head := r.out.String()[:mark]
	slices.Sort(lines)
	r.out.Reset()
	r.logf("%s%s\n", head, strings.Join(lines, "\n"))
}

func (r *runner) ping(name string) {
	r.t.Helper()
	c := r.conn(name)
	before := c.Zxid
	reply, err := c.CallXid(jute.XidPing, jute.OpPing, nil)
	r.logf("%s ping: code %d zxid+%d body=%d err=%v\n", name, reply.Err, c.Zxid-before, len(reply.Body), err != nil)
}

// fatal sends a request that costs the connection.
func (r *runner) fatal(name string, op int32, fields ...any) {
	r.t.Helper()
	c := r.conn(name)
	reply, err := c.Call(op, raw.Body(fields...))
	_, lost := c.ReadFrame()
	r.logf("%s operation %d: code %d zxid=%d body=%d err=%v, lost %v\n", name, op, reply.Err, reply.Zxid, len(reply.Body), err != nil, lost != nil)
	r.lost(name)
}
