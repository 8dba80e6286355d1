package registry

import (
	"encoding/json"
	"testing"
)

// The commands can read the agent's JSON about its checks.
func TestCheckStatus_ReadsItsOwnJSON(t *testing.T) {
	for _, want := range []Verdict{Unknown, Passing, Critical} {
		data, err := json.Marshal(CheckStatus{State: want})
		if err != nil {
			t.Fatal(err)
		}
		var got CheckStatus
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if got.State != want {
			t.Errorf("got %v from %s, want %v", got.State, data, want)
		}
	}
}
