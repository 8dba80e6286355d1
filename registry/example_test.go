package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

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
	for _, i := range instances {
		fmt.Println(i.Address(), i.Payload.Zone, err)
	}
	stop()
	<-ended
	// Output:
	// 10.0.0.5:8080 north <nil>
}
