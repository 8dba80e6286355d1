package config

import (
	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/view"
)

// flatKeys makes keys of the znodes of a flat or plain tree, and keeps what did
// not change.
type flatKeys struct{ tree *iradix.Tree[view.Key] }

// update returns the keys of the copy, of which the touched znodes may differ
// from the last call.
//
// The root is no key. A znode with children and without data is none either: it
// is there for the sake of its children.
func (f *flatKeys) update(snap *mirror.Snapshot, touched map[string]struct{}) *iradix.Tree[view.Key] {
	if f.tree == nil {
		f.tree = iradix.New[view.Key]()
	}
	txn := f.tree.Txn()
	for rel := range touched {
		if rel == "" {
			continue
		}
		n, ok := snap.Get(rel)
		if !ok || len(n.Data) == 0 && len(n.Children) > 0 {
			txn.Delete([]byte(rel))
			continue
		}
		old, had := txn.Get([]byte(rel))
		if !had || old.Mzxid != n.Stat.Mzxid {
			txn.Insert([]byte(rel), view.Key{Value: n.Data, Mzxid: n.Stat.Mzxid})
		}
	}
	f.tree = txn.Commit()
	return f.tree
}
