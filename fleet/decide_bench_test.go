package fleet

import (
	"fmt"
	"testing"
)

// BenchmarkDecide is one decision of the coordinator in the middle of a rollout of
// 100,000 hosts, all of whose places are taken.
func BenchmarkDecide(b *testing.B) {
	states := map[string]string{}
	for i := range 100_000 {
		states[fmt.Sprintf("host-%05d", i)] = HostCommit
	}
	for i := range 10_000 {
		states[fmt.Sprintf("host-%05d", i)] = HostStarted
	}
	sc := sceneOf(Gate{State: GateOpen, Wave: WaveAll}, Strategy{Parallel: 10_000}, states)
	b.ReportAllocs()
	for b.Loop() {
		if acts := sc.decide(); len(acts) > 0 {
			b.Fatal(acts[0].what)
		}
	}
}
