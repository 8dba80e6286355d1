package fleet

import (
	"bytes"
	"testing"

	"github.com/zkagent/zkagent/internal/trees"
)

func FuzzDecodeManifest(f *testing.F) {
	m, _ := buildVersion(map[string][]byte{"a": []byte("1"), "b": nil})
	f.Add(m.Encode())
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := trees.DecodeManifest(1, data)
		if err == nil && len(m.Buckets) != 1<<m.Bits {
			t.Errorf("%d buckets for %d bits", len(m.Buckets), m.Bits)
		}
	})
}

func FuzzDecodeBucket(f *testing.F) {
	f.Add(trees.EncodeBucket([]trees.Entry{{Key: "a", Size: 1}, {Key: "b/c", Size: 2, Kind: trees.KindParts}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := trees.DecodeBucket(data, 0, 0)
		if err == nil && len(entries) > 0 && !bytes.Equal(trees.EncodeBucket(entries), data) && len(data) < 1<<16 {
			// Lengths may be spelled longer than need be; what they say must hold.
			again, err := trees.DecodeBucket(trees.EncodeBucket(entries), 0, 0)
			if err != nil || len(again) != len(entries) {
				t.Errorf("does not survive: %v", err)
			}
		}
	})
}
