package grpcresolver

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"

	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/zktest"
)

// backend is a gRPC server with the standard health service.
func backend(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return l.Addr().(*net.TCPAddr).Port
}

func put(t *testing.T, s *session.Session, name string, port int, status string) {
	t.Helper()
	data := fmt.Sprintf(`{"host":"127.0.0.1","port":%d,"name":%q,"status":%q,"weight":3}`, port, name, status)
	if err := s.CreateParents(t.Context(), "/services/api/"+name); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(t.Context(), "/services/api/"+name, []byte(data), session.Ephemeral); err != nil {
		t.Fatal(err)
	}
}

// Calls reach the members of the group as they come and go.
func TestResolver_FollowsTheGroup(t *testing.T) {
	t.Parallel()
	zk := zktest.NewServer(t)
	s := zk.Session(t, "writer")
	first, second := backend(t), backend(t)
	put(t, s, "a", first, "up")
	conn, err := grpc.NewClient("zkagent:///services/api",
		grpc.WithResolvers(New(zk.Manager(t, "client"), registry.GroupConfig{})), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	only := func(ports ...int) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			seen := map[int]bool{}
			for range 20 {
				seen[call(t, conn)] = true
			}
			matches := len(seen) == len(ports)
			for _, p := range ports {
				matches = matches && seen[p]
			}
			if matches {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("calls reach %v, want %v", seen, ports)
			}
		}
	}
	only(first)
	put(t, s, "b", second, "up")
	only(first, second)
	if err := s.Delete(t.Context(), "/services/api/a", -1); err != nil {
		t.Fatal(err)
	}
	only(second)
}

// call asks whoever gRPC picks, and returns its port.
func call(t *testing.T, conn *grpc.ClientConn) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var p peer.Peer
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&p), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return p.Addr.(*net.TCPAddr).Port
}

func TestResolver_RefusesTargets(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"zkagent://host/services/api", "zkagent:services", "zkagent:///services//api"} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := New(nil, registry.GroupConfig{}).Build(resolver.Target{URL: *u}, nil, resolver.BuildOptions{}); err == nil {
			r.Close()
			t.Errorf("%s is taken", target)
		}
	}
}
