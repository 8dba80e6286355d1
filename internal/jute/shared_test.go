package jute

import (
	"slices"
	"testing"
)

// Both ways to read strings read the same, and refuse the same.
func FuzzDecoder_SharedStrings(f *testing.F) {
	var e Encoder
	e.Strings([]string{"a", "", "bcd"})
	f.Add(e.Bytes())
	f.Add([]byte("\x00\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x01x"))
	f.Add([]byte("\x00\x00\x00\x01\xff\xff\xff\xfe"))
	f.Add([]byte("\x00\x00\x00\x01\x7f\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, two := NewDecoder(b), NewDecoder(b)
		want, got := one.Strings(), two.SharedStrings()
		if !slices.Equal(got, want) || (one.Err() == nil) != (two.Err() == nil) || one.Len() != two.Len() {
			t.Errorf("got %q, %v, want %q, %v", got, two.Err(), want, one.Err())
		}
	})
}
