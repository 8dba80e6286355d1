package registry

import (
	"reflect"
	"sync"

	"github.com/zkagent/zkagent/session"
)

// shardSize is how many watches one goroutine waits for. A goroutine for each
// watch would cost more memory than all that is kept of a member.
const shardSize = 64

// fanin waits for many watches and sends the names of those that fired on out.
// Only its owner calls its methods, none of which blocks but close, which
// waits for the goroutines.
type fanin struct {
	out    chan string
	done   chan struct{}
	shards []*shard
	wg     sync.WaitGroup
}

// shard is one goroutine of a fanin.
type shard struct {
	f    *fanin
	kick chan struct{} // size 1: something was added

	mu    sync.Mutex // guards what follows
	added []named
	size  int // watches that have not fired
}

type named struct {
	name  string
	watch *session.Watch
}

func newFanin() *fanin { return &fanin{out: make(chan string), done: make(chan struct{})} }

// add waits for a watch, too.
func (f *fanin) add(name string, w *session.Watch) {
	for _, s := range f.shards {
		if s.add(named{name, w}) {
			return
		}
	}
	s := &shard{f: f, kick: make(chan struct{}, 1)}
	f.shards = append(f.shards, s)
	s.add(named{name, w})
	f.wg.Go(s.run)
}

// close ends the goroutines and forgets the watches.
func (f *fanin) close() {
	close(f.done)
	f.wg.Wait()
}

// add reports whether there was room.
func (s *shard) add(n named) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size >= shardSize {
		return false
	}
	s.size++
	s.added = append(s.added, n)
	select {
	case s.kick <- struct{}{}:
	default:
	}
	return true
}

func (s *shard) take() []named {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := s.added
	s.added = nil
	return added
}

func (s *shard) fired() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size--
}

func (s *shard) run() {
	waiting := make([]named, 0, shardSize)
	cases := []reflect.SelectCase{receive(s.f.done), receive(s.kick)}
	fixed := len(cases)
	for {
		i, _, _ := reflect.Select(cases)
		switch i {
		case 0:
			for _, n := range append(waiting, s.take()...) {
				n.watch.Stop()
			}
			return
		case 1:
			for _, n := range s.take() {
				waiting = append(waiting, n)
				cases = append(cases, receive(n.watch.C()))
			}
		default:
			name, last := waiting[i-fixed].name, len(waiting)-1
			waiting[i-fixed], cases[i] = waiting[last], cases[len(cases)-1]
			waiting[last], cases[len(cases)-1] = named{}, reflect.SelectCase{}
			waiting, cases = waiting[:last], cases[:len(cases)-1]
			s.fired()
			select {
			case s.f.out <- name:
			case <-s.f.done:
			}
		}
	}
}

func receive(c <-chan struct{}) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}
