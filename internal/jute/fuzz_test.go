package jute

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzDecoder reads any bytes as every record, in both directions, and wants no
// panic, no more memory than the input justifies, and the same bytes again from
// what was understood.
func FuzzDecoder(f *testing.F) {
	e := NewEncoder(nil)
	e.Put(ConnectRequest{Timeout: 1, Password: make([]byte, 16), ReadOnly: new(false)})
	f.Add(bytes.Clone(e.Bytes()))
	e.Reset()
	e.Put(ReplyHeader{Xid: -1, Zxid: -1})
	e.Put(WatcherEvent{Type: EventDeleted, State: StateSyncConnected, Path: "/a"})
	f.Add(bytes.Clone(e.Bytes()))
	e.Reset()
	e.Put([]ACL{{31, "world", "anyone"}})
	f.Add(bytes.Clone(e.Bytes()))
	e.Reset()
	e.Put(Stat{Czxid: 1, EphemeralOwner: 2})
	f.Add(bytes.Clone(e.Bytes()))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		again[ConnectRequest](t, in)
		again[ConnectResponse](t, in)
		again[RequestHeader](t, in)
		again[ReplyHeader](t, in)
		again[MultiHeader](t, in)
		again[WatcherEvent](t, in)
		again[Stat](t, in)
		again[ACL](t, in)
		var acls []ACL
		if _ = NewDecoder(in).Get(&acls); len(acls)*12 > len(in) {
			t.Errorf("%d ACLs out of %d bytes", len(acls), len(in))
		}
		d := NewDecoder(in)
		if names := d.Strings(); len(names)*4 > len(in) {
			t.Errorf("%d strings out of %d bytes", len(names), len(in))
		}
		d = NewDecoder(in)
		if b := d.Buffer(); len(b) > len(in) {
			t.Errorf("a buffer of %d out of %d bytes", len(b), len(in))
		}
	})
}

// again decodes, encodes and decodes, and wants the same record.
func again[T any](t *testing.T, in []byte) {
	t.Helper()
	var first, second T
	if NewDecoder(in).Get(&first) != nil {
		return
	}
	var e Encoder
	e.Put(first)
	if err := NewDecoder(e.Bytes()).Get(&second); err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("got %+v, then %+v, %v", first, second, err)
	}
}
