package config

import (
	"testing"

	"github.com/zkagent/zkagent/internal/trees"
)

// A version that names itself or a later one as its parent ends the search.
func TestOrigins_DamagedParent(t *testing.T) {
	t.Parallel()
	for _, parent := range []int64{2, 3, 9} {
		list := []*trees.Manifest{{Number: 2, Header: trees.Header{Parent: parent}}, {Number: 3, Header: trees.Header{Parent: 2}}}
		if line := lineage(list, 3); len(line) != 2 {
			t.Errorf("parent %d: %d versions", parent, len(line))
		}
	}
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
