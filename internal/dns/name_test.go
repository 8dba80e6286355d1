package dns

import "testing"

// Two ids have two labels, which are valid, whatever the case of the ids and though one
// id may be the label of the other.
func TestNodeLabel_TwoIDsHaveTwoLabels(t *testing.T) {
	ids := []string{"web1", "Web1", "WEB1", "web.1", NodeLabel("web.1"), NodeLabel("Web1"), NodeLabel(NodeLabel("web.1")), "", "-", "a b", "a-b", "web_1"}
	labels := map[string]string{}
	for _, id := range ids {
		label := NodeLabel(id)
		if other, taken := labels[label]; taken {
			t.Errorf("%q and %q have the label %q", id, other, label)
		}
		if labels[label] = id; !IsLabel(label) || NodeLabel(id) != label {
			t.Errorf("%q has the label %q", id, label)
		}
	}
	if NodeLabel("web1") != "web1" {
		t.Error("a plain id is not its own label")
	}
}
