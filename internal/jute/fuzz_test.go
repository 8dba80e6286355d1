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
	(&ConnectRequest{Timeout: 1, Password: make([]byte, 16), HasReadOnly: true}).Encode(e)
	f.Add(bytes.Clone(e.Bytes()))
	e.Reset()
	(&ReplyHeader{Xid: -1, Zxid: -1}).Encode(e)
	(&WatcherEvent{Type: EventDeleted, State: StateSyncConnected, Path: "/a"}).Encode(e)
	f.Add(bytes.Clone(e.Bytes()))
	e.Reset()
	EncodeACLs(e, []ACL{{31, "world", "anyone"}})
	f.Add(bytes.Clone(e.Bytes()))
	e.Reset()
	(&Stat{Czxid: 1, EphemeralOwner: 2}).Encode(e)
	f.Add(bytes.Clone(e.Bytes()))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		again(t, in, func() record { return &ConnectRequest{} })
		again(t, in, func() record { return &ConnectResponse{} })
		again(t, in, func() record { return &RequestHeader{} })
		again(t, in, func() record { return &ReplyHeader{} })
		again(t, in, func() record { return &MultiHeader{} })
		again(t, in, func() record { return &WatcherEvent{} })
		again(t, in, func() record { return &Stat{} })
		again(t, in, func() record { return &ACL{} })
		d := NewDecoder(in)
		if acls := DecodeACLs(d); len(acls)*12 > len(in) {
			t.Errorf("%d ACLs out of %d bytes", len(acls), len(in))
		}
		d = NewDecoder(in)
		if names := d.Strings(); len(names)*4 > len(in) {
			t.Errorf("%d strings out of %d bytes", len(names), len(in))
		}
		d = NewDecoder(in)
		if b := d.Buffer(); len(b) > len(in) {
			t.Errorf("a buffer of %d out of %d bytes", len(b), len(in))
		}
	})
}

type record interface {
	Encode(*Encoder)
	Decode(*Decoder)
}

// again decodes, encodes and decodes, and wants the same record.
func again(t *testing.T, in []byte, fresh func() record) {
	t.Helper()
	first, second := fresh(), fresh()
	d := NewDecoder(in)
	first.Decode(d)
	if d.Err() != nil {
		return
	}
	e := NewEncoder(nil)
	first.Encode(e)
	d = NewDecoder(e.Bytes())
	second.Decode(d)
	if d.Err() != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("got %+v, then %+v, %v", first, second, d.Err())
	}
}
