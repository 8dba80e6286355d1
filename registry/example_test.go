package registry_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// connect opens a session with a ZooKeeper in memory; a program names its
// ensemble in session.Config instead.
func connect(ctx context.Context) (*session.Session, func()) {
	srv := memzk.New(memzk.Options{})
	s, err := session.Dial(ctx, session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial})
	if err != nil {
		panic(err)
	}
	return s, func() { _ = s.Close(); srv.Close() }
}

// A service is registered once its check has risen, and another part of the
// program follows the group that it is in.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, closeAll := connect(ctx)
	defer closeAll()

	web := registry.NewRegistrar(registry.ServiceConfig{
		Name: "web", Groups: []string{"/services/web"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080,
		Checks: []registry.CheckConfig{{Kind: registry.CheckTTL, Name: "self", TTL: time.Minute}},
	})
	group := registry.NewGroup(registry.GroupConfig{Name: "web", Path: "/services/web"})

	updates := make(chan *view.Group)
	run, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.RunChecks(run) })
	wg.Go(func() { _ = web.Run(run, s) })
	wg.Go(func() {
		_ = group.Run(run, s, func(g *view.Group) {
			select {
			case updates <- g:
			case <-run.Done():
			}
		})
	})

	fmt.Println("members:", len((<-updates).Members))
	_ = web.Report(ctx, "self", registry.ReportPass, "all is well")
	for g := range updates {
		if len(g.Members) == 1 {
			fmt.Println("joined:", g.Members[0].ID, g.Members[0].Address())
			break
		}
	}
	wg.Go(func() { _ = web.Drain(ctx) }) // it leaves in good order
	for g := range updates {
		if len(g.Members) == 0 {
			fmt.Println("left")
			break
		}
	}
	stop()
	wg.Wait()
	// Output:
	// members: 0
	// joined: web-1 10.0.0.5:8080
	// left
}

// What other programs have written is read with its types checked.
func ExampleDecode() {
	for _, child := range [][2]string{
		{"web-1_0000000006", `{"host":"10.0.0.5","port":8080,"name":"web-1","weight":2}`},
		{"member_0000000007", `{"serviceEndpoint":{"host":"10.0.0.6","port":8080},"additionalEndpoints":{},"status":"ALIVE"}`},
		{"web-3_0000000008", `{"host":"10.0.0.7; } server {","port":8080}`},
		{"vector_0000000009", `{"vector":[{"select":"member=member_0000000003","weight":0.5}]}`},
	} {
		m, err := registry.Decode(registry.FormatAuto, child[0], []byte(child[1]))
		switch {
		case errors.Is(err, registry.ErrIgnore):
			fmt.Println("not meant to be a member")
		case err != nil:
			fmt.Println("refused:", err)
		default:
			fmt.Println(m.Address(), m.Weight, m.Status)
		}
	}
	// Output:
	// 10.0.0.5:8080 2 up
	// 10.0.0.6:8080 1 up
	// refused: host "10.0.0.7; } server {": byte 0x3b is not allowed in a name
	// not meant to be a member
}

// What Prometheus, Synapse or a Curator program reads can be written without a
// Registrar, too.
func ExampleEncode() {
	r := registry.Registration{Service: "web", ID: "web-1", Host: "10.0.0.5", Port: 8080, Weight: new(2)}
	for _, format := range []string{registry.FormatNerve, registry.FormatServerSet} {
		data, err := registry.Encode(format, r)
		fmt.Println(string(data), err)
	}
	// Output:
	// {"host":"10.0.0.5","port":8080,"name":"web-1","weight":2} <nil>
	// {"serviceEndpoint":{"host":"10.0.0.5","port":8080},"additionalEndpoints":{},"status":"ALIVE"} <nil>
}

// A client of HTTP asks the members of a group: http://web/ is no server.
func ExampleTransport() {
	members := registry.NewProvider(registry.ProviderConfig{})
	client := &http.Client{Transport: &registry.Transport{Provider: members}}
	// A Group calls members.Update with what it reads.
	members.Update(&view.Group{})
	resp, err := client.Get("http://web/")
	if err == nil {
		_ = resp.Body.Close()
	}
	fmt.Println(err)
	// Output:
	// Get "http://web/": web: no member may get traffic
}

// The settings of a group say which members it accepts, and how large a loss it believes.
func ExampleGroupConfig() {
	c := registry.GroupConfig{
		Name: "web", Path: "/services/web", Format: registry.FormatNerve,
		Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Guard: registry.GuardConfig{MaxLoss: 0.3, MinMembers: 3, Window: 30 * time.Second, Hold: 10 * time.Minute, Probe: true},
	}
	fmt.Println(c.Validate())
	c.Format = "nerv"
	fmt.Println(c.Validate())
	// Output:
	// <nil>
	// format "nerv" is not one of auto, nerve, serverset, curator, kafka-broker, patroni, dubbo-url, host-port-name, json, text, regexp-name:EXPR, fields:JSON
}

// A group is read once, and members that may get traffic are chosen of it.
func ExampleInstances() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, closeAll := connect(ctx)
	defer closeAll()
	group := registry.GroupConfig{Name: "web", Path: "/services/web"}
	members, err := registry.Instances(ctx, s, group)
	fmt.Println(len(members), err)

	web := registry.NewRegistrar(registry.ServiceConfig{Name: "web", Groups: []string{"/services/web"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080})
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- web.Run(run, s) }()
	<-web.Joined()
	members, err = registry.Instances(ctx, s, group)
	for _, m := range members {
		fmt.Println(m.Address(), m.MayServe(), err)
	}
	stop()
	<-ended
	// Output:
	// 0 <nil>
	// 10.0.0.5:8080 true <nil>
}

// Members carry a payload of the program's own type, and a filter chooses among them.
func ExampleInstancesOf() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, closeAll := connect(ctx)
	defer closeAll()
	type meta struct{ Zone string }
	web := registry.NewRegistrar(registry.ServiceConfig{
		Name: "web", Groups: []string{"/services/web"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080,
		Format: registry.FormatCurator, Curator: registry.CuratorOptions{Payload: meta{"north"}},
	})
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- web.Run(run, s) }()
	<-web.Joined()
	group := registry.GroupConfig{Path: "/services/web", Filter: func(m *view.Member) bool { return m.Port == 8080 }}
	instances, err := registry.InstancesOf[meta](ctx, s, group)
	inZone := map[string]registry.Instance[meta]{}
	for _, i := range instances {
		inZone[i.Payload.Zone] = i
	}
	fmt.Println(inZone["north"].Address(), err)
	stop()
	<-ended
	// Output:
	// 10.0.0.5:8080 <nil>
}

// A program runs the commands of its checks itself, here in a container.
func ExampleCheck() {
	var inContainer registry.RunFunc = func(_ context.Context, args []string, _ int) (output string, code int, err error) {
		return fmt.Sprint("ran ", args, ": connection refused"), 2, nil
	}
	config := registry.CheckConfig{Kind: registry.CheckExec, Command: []string{"pg_isready", "-q"}}
	fmt.Println("config:", config.Validate())
	check, err := registry.NewCheck(config, inContainer)
	if err != nil {
		panic(err)
	}
	output, err := check.Run(context.Background())
	fmt.Println(output)
	fmt.Println("check:", err)
	// Output:
	// config: <nil>
	// ran [pg_isready -q]: connection refused
	// check: command pg_isready: exit status 2
}

// A service reports its own state to a ttl check, and reads the verdict. The check falls at the second failure in a row.
func ExampleCheckStatus() {
	result := make(chan struct{}, 1)
	web := registry.NewRegistrar(registry.ServiceConfig{
		Name: "web", Groups: []string{"/services/web"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080,
		Checks: []registry.CheckConfig{{Kind: registry.CheckTTL, Name: "self", TTL: time.Minute, Fall: 2}},
		Changed: func() {
			select {
			case result <- struct{}{}:
			default: // it must not block
			}
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- web.RunChecks(ctx) }()
	for _, report := range []registry.Report{registry.ReportWarn, registry.ReportFail, registry.ReportFail} {
		_ = web.Report(ctx, "self", report, "queue is long")
		<-result
		check := web.Status().Checks[0]
		fmt.Printf("%s: %s, warning %t, ok to serve %t\n", report, check.State, check.Warning, check.State == registry.Passing)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// warn: passing, warning true, ok to serve true
	// fail: passing, warning false, ok to serve true
	// fail: critical, warning false, ok to serve false
	// <nil>
}

// Verdicts appear in JSON as words.
func ExampleVerdict() {
	var status registry.CheckStatus
	err := json.Unmarshal([]byte(`{"name": "self", "state": "critical"}`), &status)
	fmt.Println(status.State == registry.Critical, err)
	for _, verdict := range []registry.Verdict{registry.Unknown, registry.Passing, registry.Critical} {
		fmt.Println(verdict)
	}
	// Output:
	// true <nil>
	// unknown
	// passing
	// critical
}

// A check of a server with a private certificate authority. The check reads the file again for each connection.
func ExampleTLSConfig() {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	defer server.Close()
	ca, err := os.CreateTemp("", "ca")
	if err != nil {
		panic(err)
	}
	defer os.Remove(ca.Name())
	_ = pem.Encode(ca, &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	_ = ca.Close()
	for _, options := range []*registry.TLSConfig{{CAFile: ca.Name()}, {CAFile: ca.Name(), ServerName: "web.internal"}} {
		check, err := registry.NewCheck(registry.CheckConfig{Kind: registry.CheckHTTP, URL: server.URL, TLS: options}, nil)
		if err != nil {
			panic(err)
		}
		_, err = check.Run(context.Background())
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// request: tls: failed to verify certificate: x509: certificate is valid for example.com, *.example.com, not web.internal
}

// Serve is all that a service needs: it runs the checks, registers the member in each session, and removes it in the end.
func ExampleRegistrar() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	sessions, err := session.New(session.Config{Servers: []string{"zk1:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	connected, disconnect := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- sessions.Run(connected) }()

	web := registry.NewRegistrar(registry.ServiceConfig{
		Name: "web", Groups: []string{"/services/web", "/services/all"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080,
	})
	serve, leave := context.WithCancel(context.Background())
	go func() { ended <- web.Serve(serve, sessions) }()
	<-web.Joined()
	status := web.Status()
	fmt.Println(status.State, status.Address, status.Nodes)
	leave()
	fmt.Println("served:", <-ended)
	fmt.Println(web.Status().State)
	disconnect()
	<-ended
	// Output:
	// registered 10.0.0.5:8080 [/services/web/web-1_0000000000 /services/all/web-1_0000000000]
	// served: <nil>
	// left
}

// A Registrar encodes to its status, which another program decodes.
func ExampleServiceStatus() {
	web := registry.NewRegistrar(registry.ServiceConfig{
		Name: "web", Groups: []string{"/services/web"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080,
		Checks: []registry.CheckConfig{{Kind: registry.CheckTCP, Address: "10.0.0.5:8080"}},
	})
	data, err := json.Marshal(web)
	if err != nil {
		panic(err)
	}
	var status registry.ServiceStatus
	if err = json.Unmarshal(data, &status); err != nil {
		panic(err)
	}
	fmt.Println(status.Name, status.State, status.Registered)
	for _, check := range status.Checks {
		fmt.Println(check.Name, check.State)
	}
	// Output:
	// web unknown false
	// tcp unknown
}

// Maintenance takes a member out of use, whatever its checks say. StateFile keeps it over restarts.
func ExampleMaintenance() {
	web := registry.NewRegistrar(registry.ServiceConfig{
		Name: "web", Groups: []string{"/services/web"}, MemberID: "web-1", Address: "10.0.0.5", Port: 8080,
	})
	err := web.SetMaintenance(registry.Maintenance{
		On: true, Reason: "new disk", Until: time.Now().Add(time.Hour), Drain: true, DrainFor: view.Seconds(10 * time.Second),
	})
	m := web.Status().Maintenance
	fmt.Println(m.Reason, m.DrainFor, err)
	fmt.Println("now:", m.Active(time.Now()), "tomorrow:", m.Active(time.Now().Add(24*time.Hour)))
	// Output:
	// new disk 10s <nil>
	// now: true tomorrow: false
}

// A child that is no member affects no other child: the status says why it was left out.
func ExampleGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, closeAll := connect(ctx)
	defer closeAll()
	for name, data := range map[string]string{"web-1": `{"host":"10.0.0.5","port":8080}`, "web-2": `{"host":"10.0.0.6"`} {
		_ = s.CreateParents(ctx, "/services/web/"+name)
		_, _, _ = s.Create(ctx, "/services/web/"+name, []byte(data), session.Ephemeral)
	}
	group := registry.NewGroup(registry.GroupConfig{Name: "web", Path: "/services/web"})
	run, stop := context.WithCancel(ctx)
	err := group.Run(run, s, func(g *view.Group) {
		for _, m := range g.Members {
			fmt.Println("member:", m.ID, m.Address())
		}
		stop()
	})
	fmt.Println("ended:", err)
	for _, child := range group.Status().Rejected {
		fmt.Println("rejected:", child.Znode, child.Reason)
	}
	// Output:
	// member: web-1 10.0.0.5:8080
	// ended: <nil>
	// rejected: web-2 data is not a JSON object
}

// Each child of a znode is a group: the services of a site need no list.
func ExampleGroups() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, closeAll := connect(ctx)
	defer closeAll()
	for _, path := range []string{"/services/api/a1", "/services/db/d1", "/services/db/d2"} {
		_ = s.CreateParents(ctx, path)
		_, _, _ = s.Create(ctx, path, []byte(`{"host":"`+path[len(path)-2:]+`","port":80}`), session.Ephemeral)
	}
	services := registry.NewGroups(registry.GroupConfig{Name: "services", Path: "/services"})
	var status registry.GroupsStatus
	run, stop := context.WithCancel(ctx)
	err := services.Run(run, s, func(set *view.Groups) {
		api, ok := set.Group("api")
		fmt.Println(ok, api.Members[0].Address())
		status = services.Status()
		stop()
	})
	var largest registry.GroupStatus
	for _, group := range status.Groups {
		if len(group.Members) > len(largest.Members) {
			largest = group
		}
	}
	fmt.Println(largest.Name, largest.Path, len(largest.Members), err)
	// Output:
	// true a1:80
	// db /services/db 2 <nil>
}

// A provider chooses the member of each request, and leaves out one that failed.
func ExampleProvider() {
	members := registry.NewProvider(registry.ProviderConfig{Strategy: registry.RoundRobin, Errors: 1, DownFor: time.Minute})
	_, err := members.Pick()
	fmt.Println(err)
	members.Update(&view.Group{Members: []view.Member{ // Group.Run calls it in a program
		{ID: "web-1", Host: "10.0.0.5", Port: 80, Status: view.StatusUp},
		{ID: "web-2", Host: "10.0.0.6", Port: 80, Status: view.StatusUp},
		{ID: "web-3", Host: "10.0.0.7", Port: 80, Status: view.StatusDraining},
	}})
	for range 4 {
		m, err := members.Pick()
		fmt.Println(m.Address(), err)
		if m.ID == "web-2" {
			members.NoteError(m) // its request failed
		}
	}
	// Output:
	// no member may get traffic
	// 10.0.0.5:80 <nil>
	// 10.0.0.6:80 <nil>
	// 10.0.0.5:80 <nil>
	// 10.0.0.5:80 <nil>
}

// The same client gets the same member for as long as that may serve.
func ExampleStrategy() {
	group := &view.Group{}
	for i := range 9 {
		group.Members = append(group.Members, view.Member{Host: fmt.Sprintf("10.0.0.%d", i), Port: 80, Weight: 1, Status: view.StatusUp})
	}
	for _, strategy := range []registry.Strategy{registry.RoundRobin, registry.Sticky} {
		members := registry.NewProvider(registry.ProviderConfig{Strategy: strategy})
		members.Update(group)
		seen := map[string]bool{}
		for range 20 {
			m, _ := members.Pick()
			seen[m.Host] = true
		}
		fmt.Println(len(seen))
	}
	// Output:
	// 9
	// 1
}

// A format of a program's own: it says where each value of a member is.
func ExampleFields() {
	fields := registry.Fields{
		Address: "$.node.url", Weight: "$.share", Status: "$.state", Up: []string{"RUNNING"},
		Labels: map[string]string{"zone": "$.node.zone"},
	}
	format, err := fields.Format()
	if err != nil {
		panic(err)
	}
	m, err := registry.Decode(format, "w-17", []byte(`{"node":{"url":"http://10.0.0.5:8080/","zone":"north"},"share":3,"state":"RUNNING"}`))
	fmt.Println(m.ID, m.Address(), m.Weight, m.Status, m.Labels["zone"], err)
	fields.Address = "node.url"
	_, err = fields.Format()
	fmt.Println(err)
	// Output:
	// w-17 10.0.0.5:8080 3 up north <nil>
	// address: "node.url" is not name, data, a path such as $.node.host, or numbers of protobuf fields such as #1.2
}

// Prometheus reads how many members a program sees, and whether its own service is registered.
func ExampleMetrics() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, closeAll := connect(ctx)
	defer closeAll()
	metrics := prometheus.NewRegistry()
	group := registry.NewGroup(registry.GroupConfig{Name: "web", Path: "/services/web", Metrics: registry.NewMetrics(metrics)})
	run, stop := context.WithCancel(ctx)
	_ = group.Run(run, s, func(*view.Group) { stop() })
	families, err := metrics.Gather()
	for _, family := range families {
		fmt.Println(family.GetName(), family.GetMetric()[0].GetGauge().GetValue(), err)
	}
	// Output:
	// zkagent_group_flapping 0 <nil>
	// zkagent_group_holding 0 <nil>
	// zkagent_group_members 0 <nil>
	// zkagent_group_rejected 0 <nil>
}
