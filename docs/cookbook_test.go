package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/memzk"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// registered is a znode as one of the programs writes it.
type registered struct {
	group, path, data string
	acl               string // as the program sets it where it is secured; empty: open
	address           string // of the member; empty: it is none, and nobody reports it
}

const (
	// reader is what the credential zk-auth proves: agent:secret.
	reader = "digest:agent:6mlMWVoOxkf0wRlENzy/2yozx+o=:r"
	closed = "digest:other:bvwzpUHGpVNQYWF3lcLVKdGxw7Q=:cdrwa"
	anyone = "world:anyone:r," + closed
)

var cookbook = []registered{
	{"kafka", "/kafka/brokers/ids/0", `{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://k1:9092"],"jmx_port":-1,"features":{},"host":"k1","timestamp":"1600000000000","port":9092,"version":5}`, anyone, "k1:9092"},
	{"orders", "/dubbo/com.example.Orders/providers/dubbo%3A%2F%2F10.0.0.1%3A20880%2Fcom.example.Orders%3Fside%3Dprovider", "10.0.0.1", "", "10.0.0.1:20880"},
	{"users", "/discovery/users/member_0000000001", `{"serviceEndpoint":{"host":"10.0.0.2","port":8080},"additionalEndpoints":{},"status":"ALIVE","shard":0}`, "", "10.0.0.2:8080"},
	{"users", "/discovery/users/vector_0000000002", `{"vector":[{"select":"member=member_0000000001","weight":0.5,"priority":1}]}`, "", ""},
	{
		"billing", "/services/billing/6a1c8c1e",
		`{"name":"billing","id":"6a1c8c1e","address":"10.0.0.3","port":8081,"sslPort":null,"payload":{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"billing-1","name":"billing","metadata":{"instance_status":"UP"}},"registrationTimeUTC":1700000000000,"serviceType":"DYNAMIC","uriSpec":null}`,
		"", "10.0.0.3:8081",
	},
	{"solr", "/solr/live_nodes/10.0.0.4:8983_solr", "", closed + "," + reader, "10.0.0.4:8983"},
	{"pinot", "/pinot/LIVEINSTANCES/Server_10.0.0.5_8098", `{"id":"Server_10.0.0.5_8098","simpleFields":{"HELIX_VERSION":"1.0.4","LIVE_INSTANCE":"1@h","SESSION_ID":"100"},"mapFields":{},"listFields":{}}`, "", "10.0.0.5:8098"},
	{"druid", "/druid/announcements/h1:8083", `{"name":"h1:8083","host":"h1:8083","hostAndTlsPort":null,"maxSize":5000000000,"type":"historical","tier":"_default_tier","priority":0}`, "", "h1:8083"},
	{"regionservers", "/hbase/rs/rs1.example.org,16020,1700000000000", "\xff\x00\x00\x00\x0aregionserv\x00\x00\x00\x00PBUF", anyone, "rs1.example.org:16020"},
	{"hbase-master", "/hbase/master", "\xff\x00\x00\x00\x14master:16000\x8a\x1b\x12\x97w\xcf\x0e\xc9PBUF\n\x1a\n\x0em1.example.org\x10\x80}\x18\x80\xd0\x95\xff\xbc1\x10\x00", anyone, "m1.example.org:16000"},
	{"hbase-master", "/hbase/hbaseid", "\xff\x00\x00\x00\x14master:16000\x8a\x1b\x12\x97w\xcf\x0e\xc9PBUF\n\x24", anyone, ""},
	{"hbase-master", "/hbase/backup-masters", "", closed, ""},
	{"namenode", "/hadoop-ha/mycluster/ActiveStandbyElectorLock", "\n\tmycluster\x12\x03nn1\x1a\x0fnn1.example.org \xd4>(\xd3>", closed + "," + reader, "nn1.example.org:8020"},
	{"namenode", "/hadoop-ha/mycluster/ActiveBreadCrumb", "\n\tmycluster\x12\x03nn1\x1a\x0fnn1.example.org \xd4>(\xd3>", closed + "," + reader, ""},
	{"clickhouse", "/clickhouse/discovery/analytics/shards/5b1f3c8e-0000-4000-8000-000000000001", `{"version":1,"address":"ch1:9000","shard_id":1}`, "", "ch1:9000"},
	{"ours", "/ours/live/a", `{"node":{"host":"10.0.0.6","port":80},"weight":2,"state":"ACTIVE","meta":{"zone":"a"}}`, "", "10.0.0.6:80"},
}

// register starts a server, creates the znodes of the cookbook in it, and returns its
// address. test-all uses a real ZooKeeper.
func register(t *testing.T) string {
	t.Helper()
	var zk string
	if testhelp.All() {
		zk = zktest.Start(t).Addr()
	} else {
		server := memzk.New(memzk.Options{})
		t.Cleanup(server.Close)
		addr, err := server.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		zk = addr.String()
	}
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{zk}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, z := range cookbook {
		acl := session.OpenACL()
		if z.acl != "" {
			acl = nil
			for part := range strings.SplitSeq(z.acl, ",") {
				one, err := session.ParseACL(part)
				if err != nil {
					t.Fatal(err)
				}
				acl = append(acl, one)
			}
		}
		if err := s.CreateParents(t.Context(), z.path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Create(t.Context(), z.path, []byte(z.data), session.Ephemeral, acl...); err != nil {
			t.Fatal(err)
		}
	}
	return zk
}

// TestCookbook: zkagent members reads with the settings of the cookbook what each
// program writes, also where the program has closed it.
func TestCookbook(t *testing.T) {
	zk := register(t)
	text := "zookeeper {\n  servers = [\"" + zk + "\"]\n  auth \"digest\" { credential = credential(\"zk-auth\") }\n}\n"
	for _, m := range regexp.MustCompile("(?s)```hcl part\n(.*?)```").FindAllStringSubmatch(read(t, "cookbook.md"), -1) {
		text += m[1]
	}
	file := filepath.Join(t.TempDir(), "zkagent.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "members", "-c", file, "-o", "json")
	cmd.Env = append(os.Environ(), "CREDENTIALS_DIRECTORY="+credentials(t))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Members []struct {
			Group, Host string
			Port        int
		}
		Rejected []any
	}
	if err := json.Unmarshal(out, &doc); err != nil || len(doc.Rejected) > 0 {
		t.Errorf("rejected %v, %v", doc.Rejected, err)
	}
	want := map[string][]string{}
	for _, z := range cookbook {
		if z.address != "" {
			want[z.group] = append(want[z.group], z.address)
		}
	}
	got := map[string][]string{}
	for _, m := range doc.Members {
		got[m.Group] = append(got[m.Group], fmt.Sprintf("%s:%d", m.Host, m.Port))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

const clickhouseSettings = `<yandex>
<logger><level>warning</level><console>1</console></logger>
<http_port>%[1]d</http_port><listen_host>127.0.0.1</listen_host><path>./</path><tmp_path>./tmp/</tmp_path>
<zookeeper><node><host>127.0.0.1</host><port>%[2]s</port></node></zookeeper>
<users_config>users.xml</users_config><default_profile>default</default_profile><default_database>default</default_database><mark_cache_size>1000000</mark_cache_size>
<remote_servers from_zk="/clickhouse/config/remote_servers"/>
</yandex>`

const clickhouseUsers = `<yandex><profiles><default/></profiles><quotas><default/></quotas>
<users><default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default></users></yandex>`

// TestCookbook_ClickHouse: a real ClickHouse uses what zkagent publishes, and follows it.
func TestCookbook_ClickHouse(t *testing.T) {
	testhelp.OnlyAll(t, "it starts a ClickHouse")
	program := "/usr/sbin/clickhouse-server"
	if _, err := os.Stat(program); err != nil {
		t.Skip("no ClickHouse: scripts/apt-install clickhouse-server")
	}
	zk, dir, port := register(t), t.TempDir(), zktest.Port(t)
	_, zkPort, _ := strings.Cut(zk, ":")
	put := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(host string) {
		t.Helper()
		tree := t.TempDir()
		put(filepath.Join(tree, "remote_servers"), "<analytics><shard><replica><host>"+host+"</host><port>9000</port></replica></shard></analytics>")
		out, err := exec.CommandContext(t.Context(), binary, "config", "publish", tree, "/clickhouse/config", "--layout", "flat", "--yes", "--zk", zk).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	publish("127.0.0.2")
	put(filepath.Join(dir, "config.xml"), fmt.Sprintf(clickhouseSettings, port, zkPort))
	put(filepath.Join(dir, "users.xml"), clickhouseUsers)
	server := exec.CommandContext(t.Context(), program, "--config-file="+filepath.Join(dir, "config.xml"))
	server.Dir, server.Stderr = dir, t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	uses := func(host string) {
		t.Helper()
		testhelp.Eventually(t, "ClickHouse to use "+host, func() bool {
			out, _ := exec.CommandContext(t.Context(), "curl", "-s", fmt.Sprintf("http://127.0.0.1:%d/?query=select+host_name+from+system.clusters", port)).Output()
			return string(out) == host+"\n"
		})
	}
	uses("127.0.0.2")
	publish("127.0.0.3")
	uses("127.0.0.3")
}
