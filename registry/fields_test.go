package registry

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/zkagent/zkagent/view"
)

// activeNode is Hadoop's ActiveNodeInfo: nameserviceId, namenodeId, hostname, port, zkfcPort.
const activeNode = "\n\tmycluster\x12\x03nn1\x1a\x0fnn1.example.org \xd4>(\xd3>"

// hbaseMaster is HBase's Master with ServerName{host_name, port, start_code} and rpcVersion,
// behind the head that RecoverableZooKeeper writes.
const hbaseMaster = "\xff\x00\x00\x00\x14master:16000\x8a\x1b\x12\x97w\xcf\x0e\xc9PBUF\n\x1a\n\x0em1.example.org\x10\x80}\x18\x80\xd0\x95\xff\xbc1\x10\x00"

func TestFields(t *testing.T) {
	namenode := Fields{Only: "^ActiveStandbyElectorLock$", Address: "#3", Port: "#4", Labels: map[string]string{"namenode": "#2", "zkfc": "#5"}}
	master := Fields{Only: "^master$", Address: "#1.1", Port: "#1.2"}
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
		{nested, "n1", `{"node":{"host":"10.0.0.1","port":1},"weight":1e400}`, view.Member{}, "weight is not an integer"},
		{nested, "n1", `{"node":{"host":"10.0.0.1","port":1},"meta":{"zone":["a"]}}`, view.Member{
			Host: "10.0.0.1", Port: 1, Weight: 1, Status: view.StatusUp, Labels: map[string]string{"znode": "n1"}, LabelsLeftOut: "label zone: zone is not a single value",
		}, ""},
		{nested, "n1", `{"node":{"host":"10.0.0.1","port":1},"meta":7}`, view.Member{
			Host: "10.0.0.1", Port: 1, Weight: 1, Status: view.StatusUp, Labels: map[string]string{"znode": "n1"}, LabelsLeftOut: "label zone: meta is not an object",
		}, ""},
		{nested, "n1", `not JSON`, view.Member{}, "JSON"},
		{solr, "10.0.0.7:8983_solr", "", view.Member{Host: "10.0.0.7", Port: 8983, Weight: 1, Status: view.StatusUp}, ""},
		{solr, "elsewhere", "", view.Member{}, "does not match"},
		{Fields{Address: "name", Match: `^(?P<id>[a-z]+)@([^:]+):(\d+)$`}, "web@10.0.0.5:80", "whatever", view.Member{ID: "web", Host: "10.0.0.5", Port: 80, Weight: 1, Status: view.StatusUp}, ""},
		{Fields{Address: "$.at", Match: `^(?P<id>[a-z]+)@(.+)$`, ID: "name"}, "n1", `{"at":"web@10.0.0.5"}`, view.Member{ID: "web", Host: "10.0.0.5", Weight: 1, Status: view.StatusUp}, ""},
		{Fields{Address: "name", Match: `^([^,]+),(\d+),`}, "rs1.example.org,16020,1700000000000", "PBUF\x00", view.Member{Host: "rs1.example.org", Port: 16020, Weight: 1, Status: view.StatusUp}, ""},
		{namenode, "ActiveStandbyElectorLock", activeNode, view.Member{Host: "nn1.example.org", Port: 8020, Weight: 1, Status: view.StatusUp, Labels: map[string]string{"namenode": "nn1", "zkfc": "8019"}}, ""},
		{namenode, "ActiveStandbyElectorLock", activeNode[:20], view.Member{}, "not a protobuf message"},
		{namenode, "ActiveStandbyElectorLock", "", view.Member{}, "address is missing"},
		{namenode, "ActiveStandbyElectorLock", hbaseMaster, view.Member{}, "address is missing"},
		{namenode, "ActiveBreadCrumb", activeNode, view.Member{}, ErrIgnore.Error()},
		{master, "master", hbaseMaster, view.Member{Host: "m1.example.org", Port: 16000, Weight: 1, Status: view.StatusUp}, ""},
		{master, "master", hbaseMaster[:55], view.Member{}, "not a protobuf message"},
		{master, "master", "\xff\xff\xff\xff\xff", view.Member{}, "not a protobuf message"},
		{Fields{Address: "#2"}, "x", "\x12\x01a\x12\x01b", view.Member{Host: "b", Weight: 1, Status: view.StatusUp}, ""}, // the last one counts
		{Fields{Address: "#9.1"}, "master", hbaseMaster, view.Member{}, "address is missing"},
		{Fields{Address: "#1.2.1"}, "master", hbaseMaster, view.Member{}, "before 1 is not a message"},
		{Fields{Address: "#1"}, "x", "\x09abcdefgh", view.Member{}, "not a text or an integer"},
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
			c.want.ID != "" && got.ID != c.want.ID || got.LabelsLeftOut != c.want.LabelsLeftOut || !maps.Equal(got.Labels, c.want.Labels) {
			t.Errorf("%s %s: got %+v, %v", c.name, c.data, got, err)
		}
	}
	for _, bad := range []Fields{{}, {Address: "host"}, {Address: "$."}, {Address: "$.a..b"}, {Address: "name", Match: "("}, {Address: "name", Match: "a"}, {Address: "name", Match: "(?P<id>a)"}, {Address: "name", Only: "("}, {Address: "#"}, {Address: "#0"}, {Address: "#1."}, {Address: "#a"}, {Address: "name", Labels: map[string]string{"a": ""}}} {
		if _, err := bad.Format(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// Hostile text in any field of a protobuf message makes the record rejected, or is left out.
func TestFields_HostileMessage(t *testing.T) {
	format, err := (&Fields{Address: "#3", Port: "#4", ID: "#2", Labels: map[string]string{"service": "#1"}}).Format()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range hostileTexts {
		for hostile := protowire.Number(1); hostile <= 4; hostile++ {
			var data []byte
			for i, value := range []string{"mycluster", "nn1", "nn1.example.org", "8020"} {
				number := protowire.Number(i + 1)
				if number == hostile {
					value = text
				}
				data = protowire.AppendString(protowire.AppendTag(data, number, protowire.BytesType), value)
			}
			if m, err := Decode(format, "a", data); err == nil && unsafe(&m) != "" {
				t.Errorf("field %d is %q: %s in %+v", hostile, text, unsafe(&m), m)
			}
		}
	}
}
