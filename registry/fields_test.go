package registry

import (
	"maps"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/view"
)

func TestFields(t *testing.T) {
	nested := Fields{
		Address: "$.node.host", Port: "$.node.port", Weight: "$.weight", Status: "$.state", Up: []string{"ACTIVE"}, ID: "$.uid",
		Labels: map[string]string{"zone": "$.meta.zone", "znode": "name"},
	}
	solr := Fields{Address: "name", Match: `^(.+:\d+)_`}
	cases := []struct {
		fields     Fields
		name, data string
		want       view.Member
		fault      string
	}{
		{nested, "n1", `{"uid":"u1","node":{"host":"10.0.0.1","port":8080},"weight":5,"state":"ACTIVE","meta":{"zone":"a"}}`, view.Member{
			ID: "u1", Host: "10.0.0.1", Port: 8080, Weight: 5, Status: view.StatusUp, Labels: map[string]string{"zone": "a", "znode": "n1"},
		}, ""},
		{nested, "n1", `{"node":{"host":"10.0.0.1","port":"80"},"state":"up"}`, view.Member{
			Host: "10.0.0.1", Port: 80, Weight: 1, Status: view.StatusDown, Labels: map[string]string{"znode": "n1"},
		}, ""},
		{nested, "n1", `{"node":{"host":"10.0.0.1","port":70000}}`, view.Member{}, "port is not a number"},
		{nested, "n1", `{"node":{"host":"a; rm -rf /","port":1}}`, view.Member{}, "host"},
		{nested, "n1", `{"node":{"port":1}}`, view.Member{}, "address is missing"},
		{nested, "n1", `{"node":[1]}`, view.Member{}, "node"},
		{nested, "n1", `not JSON`, view.Member{}, "JSON"},
		{solr, "10.0.0.7:8983_solr", "", view.Member{Host: "10.0.0.7", Port: 8983, Weight: 1, Status: view.StatusUp}, ""},
		{solr, "elsewhere", "", view.Member{}, "does not match"},
		{Fields{Address: "name", Match: `^([^,]+),(\d+),`}, "rs1.example.org,16020,1700000000000", "PBUF\x00", view.Member{Host: "rs1.example.org", Port: 16020, Weight: 1, Status: view.StatusUp}, ""},
		{Fields{Address: "data"}, "x", "http://10.0.0.8/a\n", view.Member{Host: "10.0.0.8", Port: 80, Weight: 1, Status: view.StatusUp}, ""},
	}
	for _, c := range cases {
		format, err := c.fields.Format()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(format, c.name, []byte(c.data))
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: got %+v, %v, want %q", c.data, got, err, c.fault)
			}
			continue
		}
		if err != nil || got.Host != c.want.Host || got.Port != c.want.Port || got.Weight != c.want.Weight || got.Status != c.want.Status ||
			c.want.ID != "" && got.ID != c.want.ID || !maps.Equal(got.Labels, c.want.Labels) {
			t.Errorf("%s %s: got %+v, %v", c.name, c.data, got, err)
		}
	}
	for _, bad := range []Fields{{}, {Address: "host"}, {Address: "$."}, {Address: "$.a..b"}, {Address: "name", Match: "("}, {Address: "name", Match: "a"}, {Address: "name", Labels: map[string]string{"a": ""}}} {
		if _, err := bad.Format(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
