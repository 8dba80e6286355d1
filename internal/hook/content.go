package hook

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	"github.com/zkagent/zkagent/view"
)

// contentOf is a digest of the accepted content of a source: what a template can
// render of it. Two states with the same content are no change, whatever their
// zxids: a member that registered again, a key that was set to its old value, a
// tree that was published again. Members that a guard holds are members.
func contentOf(u view.Update) string {
	d := digester{sha256.New()}
	switch v := u.(type) {
	case *view.Tree:
		v.Walk("", func(path string, k view.Key) bool {
			d.text(path)
			d.bytes(k.Value)
			return true
		})
	case *view.Group:
		d.group(v)
	case *view.Groups:
		for _, g := range v.Groups {
			d.text(g.Name)
			d.group(g)
		}
	case *view.Leader:
		d.text(v.ID)
		d.number(v.Term)
	}
	return hex.EncodeToString(d.Sum(nil)[:16])
}

// digester writes values so that no two lists of values look the same.
type digester struct{ hash.Hash }

func (d digester) number(n int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n)) //nolint:gosec // the bits, whatever their sign.
	_, _ = d.Write(b[:])
}

func (d digester) bytes(b []byte) {
	d.number(int64(len(b)))
	_, _ = d.Write(b)
}

func (d digester) text(s string) { d.bytes([]byte(s)) }

func (d digester) texts(m map[string]string) {
	d.number(int64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		d.text(k)
		d.text(m[k])
	}
}

func (d digester) group(g *view.Group) {
	d.number(int64(len(g.Members)))
	for i := range g.Members {
		m := &g.Members[i]
		for _, s := range []string{m.ID, m.Node, m.Name, m.Host, m.Status} {
			if s == m.Znode {
				s = "" // it would be another name after the next registration.
			}
			d.text(s)
		}
		d.number(int64(m.Port))
		d.number(int64(m.Weight))
		d.number(int64(len(m.Ports)))
		for _, name := range slices.Sorted(maps.Keys(m.Ports)) {
			d.text(name)
			d.number(int64(m.Ports[name]))
		}
		d.texts(m.Labels)
		d.texts(m.RawLabels)
	}
}
