package dev

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// simulation is the simulated members: each has a session and a port of its
// own, and registers as the agent registers its services.
type simulation struct {
	cfg *agent.Config
	zk  session.Config

	mu      sync.Mutex // guards what follows
	count   map[string]int
	members map[string][]context.CancelFunc // ends one, by name, oldest first
	wg      sync.WaitGroup
}

// place finds the group and the format of members by the name or the path of a block.
func (s *simulation) place(name string) (group, format string) { //nolint:nonamedreturns // two texts need names.
	path := name
	for _, c := range s.cfg.Services {
		if c.Name == name {
			path = c.Groups[0]
		}
	}
	for _, g := range s.cfg.Groups {
		if g.Name != name && g.Path != path {
			continue
		}
		if g.Format == registry.FormatServerSet || g.Format == registry.FormatCurator {
			return g.Path, g.Format
		}
		return g.Path, registry.FormatNerve
	}
	if !strings.HasPrefix(path, "/") {
		path = "/services/" + name
	}
	return path, registry.FormatNerve
}

// run starts the members that the flags ask for, replaces them when there is
// churn, and ends all members with ctx.
func (s *simulation) run(ctx context.Context, con *term.Console, o *Options) {
	defer s.wg.Wait()
	for _, m := range o.Members {
		for range m.Count {
			if err := s.add(ctx, m.Group); err != nil {
				con.Warnf("simulated member: %v", err)
			}
		}
	}
	for o.Churn > 0 && pace.Sleep(ctx, o.Churn) {
		for _, m := range o.Members {
			// A new member comes before the old one goes: as in a deployment.
			if err := s.add(ctx, m.Group); err != nil {
				con.Warnf("simulated member: %v", err)
			}
			s.remove(m.Group)
		}
	}
	<-ctx.Done()
}

func (s *simulation) add(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[name]++
	base := name[strings.LastIndexByte(name, '/')+1:]
	id := fmt.Sprintf("%s-%d", base, s.count[name])
	b, err := newBackend(id)
	if err != nil {
		return err
	}
	group, format := s.place(name)
	life, stop := context.WithCancel(ctx)
	s.members[name] = append(s.members[name], stop)
	cfg := registry.ServiceConfig{Name: id, Groups: []string{group}, Address: "127.0.0.1", Port: b.port, Format: format, MemberID: id}
	s.wg.Go(func() {
		defer b.close()
		_ = session.Each(life, s.zk, registry.NewRegistrar(cfg).Run) // the end of the last session removes the member
	})
	return nil
}

func (s *simulation) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.members[name]
	if len(list) == 0 {
		return
	}
	s.members[name] = list[1:]
	list[0]()
}

// backend is a small server on a free loopback port that answers every request
// with its name: what stands behind a simulated member.
type backend struct {
	addr   string
	port   int
	server *http.Server
	wg     sync.WaitGroup
}

func newBackend(name string) (*backend, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("stand-in for %s: %w", name, err)
	}
	b := &backend{addr: l.Addr().String()}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		b.port = tcp.Port
	}
	b.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, name)
	})}
	b.wg.Go(func() { _ = b.server.Serve(l) })
	return b, nil
}

func (b *backend) close() {
	_ = b.server.Close()
	b.wg.Wait()
}
