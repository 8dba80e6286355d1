package fleet

import (
	"context"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// A process stops after its turn, and somebody has written over its record, over the gate, or
// over both. It records the turn where it can, and ends in any case.
func TestHost_LastWords(t *testing.T) {
	t.Parallel()
	const name = "r-0000000001"
	started, done := string(encode(HostRecord{State: HostStarted, Version: 2, From: 1})), HostRecord{State: HostDone, From: 1}
	open := string(encode(Gate{State: GateOpen, Wave: WaveAll}))
	for what, c := range map[string]struct {
		gate, record string
		recorded     bool
	}{
		"as it was":           {open, started, true},
		"a damaged gate":      {"[]", started, false},
		"a damaged record":    {open, "\xff{", false},
		"another state":       {open, `{"state":"x"}`, false},
		"no record":           {open, "", false},
		"nothing that is one": {"", "\x00", false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, z *memzk.Server) {
				s := join(t, z)
				defer s.Close()
				must(t, z.Create(gatePath("/c", name), []byte(c.gate)))
				record := recordPath("/c", name, "h")
				if c.record != "" {
					must(t, z.Create(record, []byte(c.record)))
				}
				p := New(Config{Root: "/c", Agent: "h", Host: &shows{}})
				p.ended = &ending{name, done}
				h := &host{p: p, s: s, act: &part{shardCall: shardCall{Rollout: name}}}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				must(t, h.lastWords(ctx))
				node, there := z.Tree()[record]
				if got, err := decode[HostRecord]("record", node.Data); (err == nil && got.State == HostDone) != c.recorded || !there != (c.record == "") {
					t.Errorf("the record is %q", node.Data)
				}
			})
		})
	}
}
