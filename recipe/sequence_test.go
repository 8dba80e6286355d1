package recipe

import (
	"math"
	"testing"
)

func TestParseContender(t *testing.T) {
	const id = "_c_c0d85d28-408d-49c9-86cb-21ae8e4c680d-"
	tests := []struct {
		name   string
		seq    Sequence
		shared bool
		ok     bool
	}{
		{id + "lock-0000000007", 7, false, true},
		{id + "latch-2147483647", math.MaxInt32, false, true},
		{id + "lock--2147483648", math.MinInt32, false, true},
		{id + "lock--000000001", -1, false, true},
		{id + "__READ__0000000003", 3, true, true},
		{id + "__WRIT__-000000003", -3, false, true},
		{"8613b4486a20438a89c4d23a0694d09b__lock__0000000001", 1, false, true},
		{"8613b4486a20438a89c4d23a0694d09b__rlock__-2147483648", math.MinInt32, true, true},
		{"x-72057594037927936-0000000009", 9, false, true},
		{"x--72057594037927936-0000000009", 9, false, true},
		{"n_0000000004", 4, false, true},
		{id + "lease-0000000004", 0, false, false},
		{id + "lock-00000000", 0, false, false},
		{id + "lock-99999999999", 0, false, false},
		{id + "lock-9999999999", 0, false, false},
		{"lock-", 0, false, false},
		{"", 0, false, false},
		{"-0000000001", 0, false, false},
		{"foreign", 0, false, false},
		{"x-y-0000000001", 0, false, false},
	}
	for _, tt := range tests {
		got, ok := parseContender(tt.name)
		if ok != tt.ok || got.seq != tt.seq || got.shared != tt.shared {
			t.Errorf("%q: got %d shared %v ok %v, want %d %v %v", tt.name, got.seq, got.shared, ok, tt.seq, tt.shared, tt.ok)
		}
	}
}

func TestSequence_Wraps(t *testing.T) {
	if !Sequence(math.MaxInt32).Before(math.MinInt32) || Sequence(math.MinInt32).Before(math.MaxInt32) {
		t.Error("the number after 2147483647 is not behind it")
	}
	names := []string{"a-lock--2147483648", "b-lock-2147483646", "c-lock-2147483647", "d-__READ__-2147483647"}
	if got, _ := predecessor(names, math.MinInt32, false); got != names[2] {
		t.Errorf("predecessor over the wrap: got %q, want %q", got, names[2])
	}
	if got, _ := predecessor(names, math.MinInt32+5, true); got != names[0] {
		t.Errorf("a reader's predecessor: got %q, want the nearest writer %q", got, names[0])
	}
	if got, ok := first(names); !ok || got.name != names[1] {
		t.Errorf("first: got %q, want %q", got.name, names[1])
	}
}

func TestPredecessor_IgnoresForeignChildren(t *testing.T) {
	got, foreign := predecessor([]string{"a-lock-0000000003", "backup", "0000000001"}, 4, false)
	if got != "a-lock-0000000003" || len(foreign) != 2 {
		t.Errorf("got %q and foreign %v", got, foreign)
	}
}

func TestParseEntry(t *testing.T) {
	for name, want := range map[string]item{
		"entry-005-0000000001":  {name: "entry-005-0000000001", priority: 5, seq: 1},
		"entry-999--2147483648": {name: "entry-999--2147483648", priority: 999, seq: math.MinInt32},
	} {
		if got, ok := parseEntry(name); !ok || got != want {
			t.Errorf("%s: got %+v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"entry-0000000001", "entry-x01-0000000001", "entry-1-0000000001", "qn-0000000001", "taken", ""} {
		if got, ok := parseEntry(name); ok {
			t.Errorf("%q: got %+v, want no item", name, got)
		}
	}
}

func FuzzParseContender(f *testing.F) {
	f.Add("_c_c0d85d28-lock--2147483648")
	f.Fuzz(func(t *testing.T, name string) {
		if c, ok := parseContender(name); ok && c.name != name {
			t.Errorf("%q: got name %q", name, c.name)
		}
		_, _ = parseEntry(name)
	})
}
