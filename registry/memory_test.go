package registry

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// liveHeap is what is reachable, in bytes.
func liveHeap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A member that is followed takes less than 2 kB, here with what the server in
// memory keeps for its watch.
func TestGroup_MemoryPerMember(t *testing.T) {
	testhelp.InTurn(t, 2)
	const most = 2048
	count := testhelp.Rounds(2000, 10000)
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		for n := range count {
			data := fmt.Appendf(nil, `{"host":"10.0.%d.%d","port":8080,"name":"member-%05d","weight":1,"labels":{"zone":"a"}}`, n>>8, n&255, n)
			if err := srv.Create(fmt.Sprintf("%s/member-%05d_%010d", groupPath, n, n), data); err != nil {
				t.Fatal(err)
			}
		}
		before := liveHeap()
		m := run(t, memConfig(srv), NewGroup(webGroup()))
		defer m.stop()
		eventually(t, time.Minute, "all", func() bool { g := m.group(); return g != nil && len(g.Members) == count })
		synctest.Wait()
		after := liveHeap()
		each := (after - min(before, after)) / uint64(count)
		t.Logf("%d bytes a member", each)
		if each > most {
			t.Errorf("%d bytes a member, at most %d are wanted", each, most)
		}
		runtime.KeepAlive(m)
	})
}
