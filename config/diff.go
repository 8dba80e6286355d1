package config

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/zkagent/zkagent/view"
)

// Kinds of changes.
const (
	Added   = "added"
	Changed = "changed"
	Removed = "removed"
)

// Change is the difference of one key between two trees.
type Change struct {
	Key  string `json:"key"`
	Kind string `json:"kind"` // added, changed or removed
	// Old and New are the values; nil where there is none.
	Old []byte `json:"-"`
	New []byte `json:"-"`
}

// Diff returns the differences between two trees, sorted by key. A nil tree has
// no keys.
func Diff(from, to *view.Tree) []Change { return changes(radixOf(from), radixOf(to)) }

func radixOf(t *view.Tree) *iradix.Tree[view.Key] {
	if t == nil {
		return iradix.New[view.Key]()
	}
	return t.Keys()
}

// treeOf makes a radix tree of a map.
func treeOf(keys map[string][]byte) *iradix.Tree[view.Key] {
	txn := iradix.New[view.Key]().Txn()
	for key, value := range keys {
		txn.Insert([]byte(key), view.Key{Value: value})
	}
	return txn.Commit()
}

// changes walks both trees, which are sorted, side by side.
func changes(from, to *iradix.Tree[view.Key]) []Change {
	list := []Change{}
	if from.Root() == to.Root() {
		return list
	}
	a, b := from.Root().Iterator(), to.Root().Iterator()
	ka, va, oka := a.Next()
	kb, vb, okb := b.Next()
	for oka || okb {
		order := bytes.Compare(ka, kb)
		switch {
		case oka && (!okb || order < 0):
			list = append(list, Change{Key: string(ka), Kind: Removed, Old: va.Value})
			ka, va, oka = a.Next()
		case okb && (!oka || order > 0):
			list = append(list, Change{Key: string(kb), Kind: Added, New: vb.Value})
			kb, vb, okb = b.Next()
		default:
			if !bytes.Equal(va.Value, vb.Value) {
				list = append(list, Change{Key: string(ka), Kind: Changed, Old: va.Value, New: vb.Value})
			}
			ka, va, oka = a.Next()
			kb, vb, okb = b.Next()
		}
	}
	return list
}

// Unified returns the change as a unified diff whose sides are named
// "<from>/<key>" and "<to>/<key>".
func (c Change) Unified(from, to string) string {
	oldName, newName := from+"/"+c.Key, to+"/"+c.Key
	switch c.Kind {
	case Added:
		oldName = "/dev/null"
	case Removed:
		newName = "/dev/null"
	}
	if !isText(c.Old) || !isText(c.New) {
		return fmt.Sprintf("Binary values %s (%d bytes) and %s (%d bytes) differ\n", oldName, len(c.Old), newName, len(c.New))
	}
	// The first line of the library's output names the command.
	_, text, _ := bytes.Cut(diff.Diff(oldName, lines(c.Old), newName, lines(c.New)), []byte{'\n'})
	if len(text) == 0 { // An empty value came or went.
		return fmt.Sprintf("--- %s\n+++ %s\n", oldName, newName)
	}
	return string(text)
}

// noNewline is how diff marks a last line without its end.
const noNewline = "\\ No newline at end of file"

// lines ends the last line, and says when it had no end.
func lines(data []byte) []byte {
	if len(data) == 0 || data[len(data)-1] == '\n' {
		return data
	}
	return append(slices.Clone(data), "\n"+noNewline+"\n"...)
}

// Unified returns the changes as one unified diff.
func Unified(list []Change, from, to string) string {
	var b strings.Builder
	for _, c := range list {
		text := c.Unified(from, to)
		b.WriteString(text)
	}
	return b.String()
}

// isText reports whether a value can be shown line by line.
func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }
