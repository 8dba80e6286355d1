package config

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

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
func Diff(from, to *view.Tree) []Change {
	list := []Change{}
	keysIn(from).Diff(keysIn(to), func(path string, old, now *view.Key) {
		switch {
		case old == nil:
			list = append(list, Change{Key: path, Kind: Added, New: now.Value})
		case now == nil:
			list = append(list, Change{Key: path, Kind: Removed, Old: old.Value})
		default:
			list = append(list, Change{Key: path, Kind: Changed, Old: old.Value, New: now.Value})
		}
	})
	return list
}

func keysIn(t *view.Tree) *view.Keys {
	if t == nil {
		return nil
	}
	return t.Keys()
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
	if len(text) == 0 { // An empty value came or went, or a line break at the end.
		text = fmt.Appendf(nil, "--- %s\n+++ %s\n", oldName, newName)
	}
	if len(c.Old) == 0 || len(c.New) == 0 || ended(c.Old) == ended(c.New) {
		return string(text) // Most values have no final line break, which is nothing to tell.
	}
	without := oldName
	if ended(c.Old) {
		without = newName
	}
	return string(text) + "\\ No newline at the end of " + without + "\n"
}

func ended(data []byte) bool { return data[len(data)-1] == '\n' }

func lines(data []byte) []byte {
	if len(data) == 0 || ended(data) {
		return data
	}
	return append(slices.Clone(data), '\n')
}

// Unified returns the changes as one unified diff.
func Unified(list []Change, from, to string) string {
	var b strings.Builder
	for _, c := range list {
		b.WriteString(c.Unified(from, to))
	}
	return b.String()
}

func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }
