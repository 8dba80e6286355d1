// Package history records what clients of a recipe did in a test, and checks with
// porcupine that a model could have done the same in some order.
package history

import (
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// patience bounds the search for an order, in real time. A search that takes
// longer has shown nothing, and fails nothing.
const patience = 20 * time.Second

// Log is a history of operations. It counts moments instead of measuring them,
// because virtual time stands still between two of them. It may be used by many
// goroutines at once. The zero value is ready.
type Log struct {
	mu  sync.Mutex // mu guards what follows
	now int64
	ops []porcupine.Operation
}

// Now returns a moment after all that were given out before: when an operation
// is called.
func (l *Log) Now() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	return l.now
}

// Add records an operation that was called at a moment of Now and returns now.
func (l *Log) Add(client int, call int64, input, output any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	l.ops = append(l.ops, porcupine.Operation{ClientId: client, Input: input, Call: call, Output: output, Return: l.now})
}

// Check fails the test when the history has fewer than least operations, which
// shows nothing, or cannot be that of the model. It must be called outside a
// bubble of virtual time, in which its patience would never end.
func (l *Log) Check(tb testing.TB, model porcupine.Model, least int) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ops) < least {
		tb.Errorf("only %d operations, want %d to show anything", len(l.ops), least)
	}
	if porcupine.CheckOperationsTimeout(model, l.ops, patience) == porcupine.Illegal {
		tb.Errorf("the history of %d operations is not linearizable", len(l.ops))
	}
}

// Permits is the model of k permits. The input is +1 for an acquire, -1 for a
// release; with one permit it is that of a lock.
func Permits(k int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, input, _ any) (bool, any) {
			n := state.(int) + input.(int) //nolint:forcetypeassert // the model's own
			return n >= 0 && n <= k, n
		},
	}
}

// Term is an operation on an office: its begin, or its end. The output is the
// number of the term.
type Term struct {
	Who   string
	Begin bool
}

// office is who holds it, and the last term.
type office struct {
	holder string
	term   int64
}

// Office is the model of an election: no two candidates lead at a time, and terms
// never go back. A term may continue after a suspension under its number.
var Office = porcupine.Model{
	Init: func() any { return office{} },
	Step: func(state, input, output any) (bool, any) {
		o, a, term := state.(office), input.(Term), output.(int64) //nolint:forcetypeassert // the model's own
		if a.Begin {
			return o.holder == "" && term >= o.term, office{a.Who, term}
		}
		return o.holder == a.Who && term == o.term, office{"", o.term}
	},
}

// QueueOp is a put of a body, or a take that returned one. A body of a queue is
// QueueBody bytes long.
type QueueOp struct {
	Put  bool
	Body string
}

// QueueBody is the length of the bodies of the model of a queue.
const QueueBody = 4

// Queue is the model of a queue, first in, first out.
var Queue = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		q, op := state.(string), input.(QueueOp) //nolint:forcetypeassert // the model's own
		if op.Put {
			return true, q + op.Body
		}
		return len(q) >= QueueBody && q[:QueueBody] == op.Body, q[min(QueueBody, len(q)):]
	},
}
