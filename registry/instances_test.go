package registry

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// A group that cannot be read is an error at once, not a wait for the end of the context.
func TestInstances_Unreadable(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		if err := srv.CreateWith("/closed", nil, jute.FlagPersistent, []jute.ACL{{Perms: jute.PermDelete, Scheme: "world", ID: "anyone"}}); err != nil {
			t.Fatal(err)
		}
		if err := srv.CreateWith("/large", nil, jute.FlagPersistent, nil); err != nil {
			t.Fatal(err)
		}
		if err := srv.Create("/large/a", record(80)); err != nil {
			t.Fatal(err)
		}
		s, err := session.Dial(t.Context(), memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if m, err := Instances(ctx, s, GroupConfig{Path: "/closed"}); !errors.Is(err, session.ErrNoAuth) {
			t.Errorf("got %v, %v", m, err)
		}
		if m, err := Instances(ctx, s, GroupConfig{Path: "/large", MaxBytes: 4}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("got %v, %v", m, err)
		}
	})
}

// meta is the payload of a program of ours.
type meta struct {
	Zone string `json:"zone"`
	Tier int    `json:"tier"`
}

// A registrar writes a payload of any type, which one read returns as that type. The filter
// leaves members out, in a read and in a group that is followed.
func TestInstancesOf(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		a := run(t, memConfig(srv), NewRegistrar(ServiceConfig{
			Name: "web", Groups: []string{groupPath}, MemberID: "a", Address: "10.0.0.5", Port: 80, Format: FormatCurator,
			Curator: CuratorOptions{PayloadClass: "not used", Payload: meta{"north", 2}},
		}))
		defer a.stop()
		eventually(t, time.Minute, "the member", func() bool { return len(nodes(srv)) == 1 })
		for name, data := range map[string]string{
			"b": `{"host":"10.0.0.6","port":80,"name":"b","zone":"south","tier":3}`, // nerve: the payload is the whole record
			"c": `{"host":"10.0.0.7","port":80,"name":"c","tier":"high"}`,
			"d": `{"name":"web","id":"d","address":"10.0.0.8","port":80,"payload":null}`,
		} {
			if err := srv.Create(groupPath+"/"+name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := session.Dial(t.Context(), memConfig(srv))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		group := GroupConfig{Path: groupPath, Filter: func(m *view.Member) bool { return m.ID != "d" }}
		list, err := InstancesOf[meta](t.Context(), s, group)
		if err != nil || len(list) != 3 {
			t.Fatalf("got %+v, %v", list, err)
		}
		if list[0].Payload != (meta{"north", 2}) || list[0].Err != nil || list[0].Address() != "10.0.0.5:80" {
			t.Errorf("curator: got %+v", list[0])
		}
		if list[1].Payload != (meta{"south", 3}) || list[1].Err != nil {
			t.Errorf("nerve: got %+v", list[1])
		}
		if list[2].Err == nil || list[2].ID != "c" {
			t.Errorf("a payload of another type: got %+v", list[2])
		}
		group.Filter = func(m *view.Member) bool { return m.ID == "d" }
		if list, err = InstancesOf[meta](t.Context(), s, group); err != nil || len(list) != 1 || list[0].Err != nil {
			t.Errorf("without a payload: got %+v, %v", list, err)
		}
		f := run(t, memConfig(srv), NewGroup(group))
		defer f.stop()
		eventually(t, time.Minute, "the group", func() bool { return f.group() != nil })
		if g := f.group(); len(g.Members) != 1 || len(g.Rejected) != 0 {
			t.Errorf("followed: got %+v", g)
		}
	})
}
