package registry

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/view"
)

func TestProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := &view.Group{}
		for i := range 4 {
			group.Members = append(group.Members, view.Member{Name: string(rune('a' + i)), Host: "h", Port: 80 + i, Weight: i, Status: view.StatusUp})
		}
		group.Members[3].Status = view.StatusDraining
		for _, strategy := range []Strategy{RoundRobin, Random, Sticky} {
			p := NewProvider(ProviderConfig{Strategy: strategy})
			if _, err := p.Pick(); !errors.Is(err, ErrNoMember) {
				t.Errorf("%v: without members: %v", strategy, err)
			}
			p.Update(group)
			seen := map[string]int{}
			for range 300 {
				m, err := p.Pick()
				if err != nil || m.Name == "d" {
					t.Fatalf("%v: picked %q, %v", strategy, m.Name, err)
				}
				seen[m.Name]++
			}
			switch {
			case strategy == RoundRobin && (seen["a"] != 100 || seen["b"] != 100),
				strategy == Random && (seen["a"] != 0 || seen["c"] < seen["b"]),
				strategy == Sticky && len(seen) != 1:
				t.Errorf("%v: %v", strategy, seen)
			}
			bad, _ := p.Pick()
			p.NoteError(bad)
			p.NoteError(bad)
			for range 100 {
				if m, _ := p.Pick(); m.Name == bad.Name {
					t.Fatalf("%v: picked one that fails", strategy)
				}
			}
			time.Sleep(time.Minute)
			if strategy == RoundRobin {
				seen = map[string]int{}
				for range 3 {
					m, _ := p.Pick()
					seen[m.Name]++
				}
				if seen[bad.Name] != 1 {
					t.Errorf("a member that failed a minute ago is still left out: %v", seen)
				}
			}
		}
	})
}
