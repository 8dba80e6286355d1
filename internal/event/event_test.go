package event

import "testing"

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
