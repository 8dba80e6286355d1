package condition

import (
	"slices"
	"strings"
	"testing"
)

// TestKinds_AreDescribed: each kind has whole sentences and a code that no other
// kind has, in order.
func TestKinds_AreDescribed(t *testing.T) {
	var codes []string
	for _, k := range Kinds() {
		codes = append(codes, k.Code)
		for _, s := range []string{k.Meaning, k.Use, k.Do} {
			if !strings.HasSuffix(s, ".") {
				t.Errorf("%s: %q is not a sentence", k.Code, s)
			}
		}
		if got := (Condition{Code: k.Code, Subject: "one"}).Kind(); strings.Contains(got.Do, "NAME") || got.Meaning != k.Meaning {
			t.Errorf("%s: the kind of a condition with a subject is %+v", k.Code, got)
		}
	}
	if want := slices.Compact(slices.Sorted(slices.Values(codes))); !slices.Equal(codes, want) {
		t.Errorf("got codes %q, want them once each and in order", codes)
	}
}
