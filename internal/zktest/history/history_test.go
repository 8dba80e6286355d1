package history

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// The models refuse what must never happen and accept what may.
func TestModels(t *testing.T) {
	type op struct{ input, output any }
	for _, c := range []struct {
		name  string
		model porcupine.Model
		ops   []op
		ok    bool
	}{
		{"two permits", Permits(2), []op{{1, nil}, {1, nil}, {-1, nil}}, true},
		{"two holders", Permits(1), []op{{1, nil}, {1, nil}, {-1, nil}}, false},
		{"term after term", Office, []op{{Term{"a", true}, int64(1)}, {Term{"a", false}, int64(1)}, {Term{"b", true}, int64(2)}}, true},
		{"two leaders", Office, []op{{Term{"a", true}, int64(1)}, {Term{"b", true}, int64(2)}}, false},
		{"a term that goes back", Office, []op{{Term{"a", true}, int64(2)}, {Term{"a", false}, int64(2)}, {Term{"b", true}, int64(1)}}, false},
		{"in order", Queue, []op{{QueueOp{true, "aaaa"}, nil}, {QueueOp{true, "bbbb"}, nil}, {QueueOp{false, "aaaa"}, nil}}, true},
		{"out of order", Queue, []op{{QueueOp{true, "aaaa"}, nil}, {QueueOp{true, "bbbb"}, nil}, {QueueOp{false, "bbbb"}, nil}}, false},
		{"taken twice", Queue, []op{{QueueOp{true, "aaaa"}, nil}, {QueueOp{false, "aaaa"}, nil}, {QueueOp{false, "aaaa"}, nil}}, false},
	} {
		var l Log
		for _, o := range c.ops {
			l.Add(0, l.Now(), o.input, o.output)
		}
		if got := porcupine.CheckOperations(c.model, l.ops); got != c.ok {
			t.Errorf("%s: got %v, want %v", c.name, got, c.ok)
		}
		l.Check(nilIfIllegal{t, c.ok}, c.model, len(c.ops))
	}
}

// nilIfIllegal takes the errors of a check that must fail.
type nilIfIllegal struct {
	testing.TB
	ok bool
}

func (n nilIfIllegal) Errorf(format string, args ...any) {
	if n.ok {
		n.TB.Errorf(format, args...)
	}
}
