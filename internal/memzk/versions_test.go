package memzk

import "testing"

func TestPersonality(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"3.4": "3.4.13", "3.4.5": "", "3.5": "3.5.9", "3.8": "3.8.0", "3.8.4": "3.8.0", "3.9": "3.9.6", "3.9.4": "3.9.3", "3.9.6": "3.9.6",
		"3.10.1": "3.9.6", "4.0": "3.9.6", "3.3": "", "": "", "x": "", "3.x": "", "-3.9": "",
	} {
		if got, err := Personality(version); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", version, got, err, want)
		}
	}
}
