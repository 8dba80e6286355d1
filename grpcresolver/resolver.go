// Package grpcresolver resolves gRPC targets from the members of a group in
// ZooKeeper. It is a module of its own, so that programs without gRPC do not
// carry it.
//
//	manager, err := session.New(session.Config{Servers: servers})
//	go manager.Run(ctx)
//	conn, err := grpc.NewClient("zkagent:///services/api",
//		grpc.WithResolvers(grpcresolver.New(manager, registry.GroupConfig{})),
//		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`), ...)
//
// The path of the target is the group's znode. Members that may get traffic are
// the endpoints; a weight is in the attributes of each, see [Weight]. Each change
// is passed on at once. While ZooKeeper cannot be reached the last known members
// stay; the group's guard holds members that vanish together.
package grpcresolver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"

	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Scheme is the scheme of the targets.
const Scheme = "zkagent"

type weightKey struct{}

// Weight returns the weight that a member has registered; 1 when none is known.
func Weight(e resolver.Endpoint) int {
	if w, ok := e.Attributes.Value(weightKey{}).(int); ok {
		return w
	}
	return 1
}

// New returns a builder of resolvers. The manager must be running. Group is how
// groups are followed (format, allow, guard); its path is that of the target.
func New(m *session.Manager, group registry.GroupConfig) resolver.Builder {
	return &builder{manager: m, group: group}
}

type builder struct {
	manager *session.Manager
	group   registry.GroupConfig
}

// Scheme implements resolver.Builder.
func (*builder) Scheme() string { return Scheme }

// Build starts to follow the group of a target.
func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	path := target.URL.Path
	if err := session.ValidatePath(path); err != nil {
		return nil, fmt.Errorf("target %s: %w", &target.URL, err)
	}
	if target.URL.Host != "" {
		return nil, fmt.Errorf("target %s: write three slashes, as in %s:///services/api", &target.URL, Scheme)
	}
	cfg := b.group
	cfg.Name, cfg.Path = path, path
	ctx, cancel := context.WithCancel(context.Background())
	r := &following{cancel: cancel}
	group := registry.NewGroup(cfg)
	r.wg.Go(func() {
		err := b.manager.Each(ctx, func(ctx context.Context, s *session.Session) error {
			return group.Run(ctx, s, func(g *view.Group) { update(cc, g) })
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			cc.ReportError(fmt.Errorf("group %s is not followed: %w", path, err))
		}
	})
	return r, nil
}

// update passes the members on. An error of gRPC's means that it wants others,
// and others come by themselves.
func update(cc resolver.ClientConn, g *view.Group) {
	var state resolver.State
	for _, m := range g.Members {
		if m.MayServe() && m.Port > 0 {
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{
				Addresses:  []resolver.Address{{Addr: m.Address()}},
				Attributes: attributes.New(weightKey{}, m.Weight),
			})
		}
	}
	_ = cc.UpdateState(state)
}

// following follows one group until it is closed.
type following struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// ResolveNow does nothing: changes come by themselves.
func (*following) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends following and waits for its end.
func (r *following) Close() {
	r.cancel()
	r.wg.Wait()
}
