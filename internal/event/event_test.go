package event

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEvents_AfterARestart(t *testing.T) {
	former := NewRing()
	former.Add(Event{Kind: "a"})
	seen, _ := former.Newest()
	e := NewRing()
	e.seq = max(e.seq, seen+1) // both are of the same microsecond here
	first := e.seq
	e.Add(Event{Kind: "a"})
	e.Add(Event{Kind: "b"})
	if list, _ := e.Since(seen); len(list) != 2 {
		t.Errorf("a reader of a former process got %v", list)
	}
	if list, _ := e.Since(first + 700); len(list) != 2 {
		t.Errorf("a reader of a process with another clock got %v", list)
	}
	if list, _ := e.Since(first + 2); len(list) != 0 {
		t.Errorf("got %v", list)
	}
}

// Orders are kept over a restart and over any number of other events, the newest
// ordersKept of them, in a file that nobody else can read.
func TestOrders_Kept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "orders.json")
	ring := func() *Ring {
		e := NewRing()
		e.KeepOrders(filepath.Dir(path), func(err error) { t.Error(err) })
		return e
	}
	former := ring()
	former.Add(Event{Kind: "order", Subject: "maint", Text: "on=true", By: "ann"})
	for range 3 * ringSize {
		former.Add(Event{Kind: "applied"})
	}
	former.Add(Event{Kind: "order", Subject: "reload", By: "bob"})
	for name, e := range map[string]*Ring{"the same process": former, "the next one": ring()} {
		e.Add(Event{Kind: "applied", Subject: "now"})
		list, _ := e.Since(0)
		var orders []string
		last := int64(0)
		for _, ev := range list {
			if ev.Seq <= last {
				t.Errorf("%s: event %d comes after %d", name, ev.Seq, last)
			}
			if last = ev.Seq; ev.Kind == "order" {
				orders = append(orders, ev.By+" "+ev.Subject)
			}
		}
		if got := strings.Join(orders, ", "); got != "ann maint, bob reload" {
			t.Errorf("%s: orders %q", name, got)
		}
		if seq, _ := e.Newest(); list[len(list)-1].Seq != seq {
			t.Errorf("%s: the newest event is not the last", name)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	e := ring()
	for n := range 3 * ordersKept {
		e.Add(Event{Kind: "order", Subject: fmt.Sprint(n), Text: strings.Repeat("x", 1<<16)})
	}
	list, _ := ring().Since(0)
	if len(list) != ordersKept || list[0].Subject != fmt.Sprint(2*ordersKept) || len(list[0].Text) != maxKeptText {
		t.Errorf("%d orders are kept", len(list))
	}
}

// A file of orders that is damaged or cannot be written is reported, and the orders go
// on.
func TestOrders_Damaged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "orders.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var failures []error
	note := func(err error) { failures = append(failures, err) }
	e := NewRing()
	e.KeepOrders(dir, note)
	if len(failures) != 1 || !strings.Contains(failures[0].Error(), path) {
		t.Errorf("a damaged file: %v", failures)
	}
	e.Add(Event{Kind: "order", Subject: "reload"})
	if list, _ := e.Since(0); len(failures) != 1 || len(list) != 1 {
		t.Errorf("after a damaged file: %v, %v", failures, list)
	}
	e = NewRing()
	e.KeepOrders(path, note)
	e.Add(Event{Kind: "order", Subject: "reload"})
	if list, _ := e.Since(0); len(failures) < 2 || len(list) != 1 {
		t.Errorf("without a directory: %v, %v", failures, list)
	}
}
