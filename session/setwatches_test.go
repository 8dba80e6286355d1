package session

import (
	"fmt"
	"testing"
)

// watching returns a book with n watches of data and children.
func watching(n int) *watchBook {
	b := newWatchBook(noMetrics{})
	for i := range n {
		w, _ := b.begin(nil, fmt.Sprintf("/bench/tree/dir-%04d/key-%09d", i/100, i), watchData.set()|watchChild.set())
		w.armed = true
	}
	return b
}

// Setting all watches again takes memory for what is sent, and little besides.
func TestRenew_Allocations(t *testing.T) {
	b := watching(5000)
	requests, size := 0, 0
	send := func(c *call) bool {
		requests++
		size += len(c.frame)
		return true
	}
	if !b.renew(7, send) || requests != 1+size/(setWatchesSize+100) || size < 5000*2*38 {
		t.Errorf("%d requests of %d bytes", requests, size)
	}
	if got := testing.AllocsPerRun(5, func() { b.renew(7, send) }); got > 100 {
		t.Errorf("%.0f allocations, at most 100 are wanted", got)
	}
	if b.renew(7, func(*call) bool { return false }) {
		t.Error("a connection that has ended was set up")
	}
}

// BenchmarkRenew encodes what a reconnect sends for 20,000 znodes.
func BenchmarkRenew(b *testing.B) {
	book := watching(20000)
	b.ReportAllocs()
	for b.Loop() {
		book.renew(7, func(*call) bool { return true })
	}
}
