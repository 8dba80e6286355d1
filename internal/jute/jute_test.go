package jute

import (
	"errors"
	"reflect"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	e := NewEncoder(nil)
	e.Bool(true)
	e.Int32(-7)
	e.Int64(1 << 40)
	e.Buffer(nil)
	e.Buffer([]byte{})
	e.Buffer([]byte("ab"))
	e.String("päth")
	e.Put([]string{"x", ""})
	stat := Stat{Czxid: 1, Mzxid: 2, Ctime: 3, Mtime: 4, Version: 5, Cversion: 6, Aversion: 7, EphemeralOwner: 8, DataLength: 9, NumChildren: 10, Pzxid: 11}
	before := e.Len()
	e.Put(stat)
	if got, want := e.Len()-before, StatSize; got != want {
		t.Errorf("size of a Stat: got %d, want %d", got, want)
	}
	e.Put([]ACL{{PermAll, "world", "anyone"}})

	d := NewDecoder(e.Bytes())
	if got := d.Bool(); !got {
		t.Error("bool: got false")
	}
	if got, want := d.Int32(), int32(-7); got != want {
		t.Errorf("int32: got %d, want %d", got, want)
	}
	if got, want := d.Int64(), int64(1<<40); got != want {
		t.Errorf("int64: got %d, want %d", got, want)
	}
	if got := d.Buffer(); got != nil {
		t.Errorf("nil buffer: got %q", got)
	}
	if got := d.Buffer(); got == nil || len(got) != 0 {
		t.Errorf("empty buffer: got %#v", got)
	}
	if got, want := string(d.Buffer()), "ab"; got != want {
		t.Errorf("buffer: got %q, want %q", got, want)
	}
	if got, want := d.String(), "päth"; got != want {
		t.Errorf("string: got %q, want %q", got, want)
	}
	if got, want := d.Strings(), []string{"x", ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("strings: got %q, want %q", got, want)
	}
	var got Stat
	if err := d.Get(&got); err != nil || got != stat {
		t.Errorf("stat: got %+v, want %+v", got, stat)
	}
	var acls []ACL
	_ = d.Get(&acls)
	if got, want := acls, []ACL{{31, "world", "anyone"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("ACLs: got %v, want %v", got, want)
	}
	if d.Err() != nil || d.Len() != 0 {
		t.Errorf("end: err %v, %d bytes left", d.Err(), d.Len())
	}
}

func TestDecoderErrorsAreKept(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		read func(*Decoder)
		want error
	}{
		{"short int32", []byte{0, 0}, func(d *Decoder) { d.Int32() }, ErrShort},
		{"short int64", []byte{0, 0, 0, 0, 0}, func(d *Decoder) { d.Int64() }, ErrShort},
		{"no bool", nil, func(d *Decoder) { d.Bool() }, ErrShort},
		{"buffer longer than the rest", []byte{0x7f, 0xff, 0xff, 0xff, 1}, func(d *Decoder) { d.Buffer() }, ErrShort},
		{"negative string", []byte{0xff, 0xff, 0xff, 0xfe}, func(d *Decoder) { _ = d.String() }, ErrLength},
		{"negative buffer", []byte{0x80, 0, 0, 0}, func(d *Decoder) { d.Buffer() }, ErrLength},
		{"vector longer than the rest", []byte{0x7f, 0xff, 0xff, 0xff}, func(d *Decoder) { d.Strings() }, ErrShort},
		{"ACLs longer than the rest", []byte{0, 0, 0, 9, 1, 2}, func(d *Decoder) { _ = d.Get(new([]ACL)) }, ErrShort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := NewDecoder(tt.in)
			tt.read(d)
			if got := d.Err(); !errors.Is(got, tt.want) {
				t.Fatalf("got %v, want %v", got, tt.want)
			}
			first := d.Err()
			if d.Int64() != 0 || d.Buffer() != nil || d.String() != "" || d.Bool() || d.Len() != 0 {
				t.Error("a read after an error gave a value")
			}
			if got := d.Err(); !errors.Is(got, first) {
				t.Errorf("the first error was replaced by %v", d.Err())
			}
		})
	}
}

func TestConnectRecordsWithAndWithoutReadOnly(t *testing.T) {
	for _, has := range []bool{false, true} {
		in := ConnectRequest{LastZxidSeen: 3, Timeout: 4000, SessionID: 5, Password: make([]byte, 16)}
		if has {
			in.ReadOnly = new(true)
		}
		e := NewEncoder(nil)
		e.Put(in)
		want := 44
		if has {
			want = 45
		}
		if e.Len() != want {
			t.Errorf("length: got %d, want %d", e.Len(), want)
		}
		var out ConnectRequest
		if err := NewDecoder(e.Bytes()).Get(&out); err != nil || !reflect.DeepEqual(in, out) {
			t.Errorf("got %+v, want %+v", out, in)
		}
	}
}
