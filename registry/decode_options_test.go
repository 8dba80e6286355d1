package registry

import (
	"testing"

	"github.com/zkagent/zkagent/view"
)

// What a member of Nerve wants at its line of HAProxy is a label; one that is no text
// never takes the member away.
func TestDecodeNerve_Options(t *testing.T) {
	for data, want := range map[string]string{
		`{"host":"h","port":1,"name":"n","haproxy_server_options":"backup","labels":{"a":"b"}}`: "backup",
		`{"host":"h","port":1,"name":"n","haproxy_server_options":"weight 9"}`:                  "weight 9",
		`{"host":"h","port":1,"name":"n","haproxy_server_options":9}`:                           "",
	} {
		var m view.Member
		err := decodeNerve(&m, "n_0000000001", []byte(data))
		if err != nil || m.Host != "h" || m.Labels[optionsLabel] != want {
			t.Errorf("%s: got %+v, %v", data, m, err)
		}
	}
}
