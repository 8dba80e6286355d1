package dns

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// The listener follows the settings; one that cannot be opened is reported and
// does not end the keeper.
func TestKeeper(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var want atomic.Pointer[Config]
	want.Store(&Config{Listen: taken.Addr().String(), Domain: "zkagent."})
	type report struct {
		address string
		err     error
	}
	reports := make(chan report, 10)
	k := NewKeeper()
	state := testState()
	k.Want, k.State, k.Metrics, k.Logger = want.Load, func() State { return state }, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	k.Failed = func(address string, err error) { reports <- report{address, err} }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { k.Run(ctx); close(done) }()
	if r := <-reports; r.err == nil || r.address != taken.Addr().String() {
		t.Errorf("a taken port: %+v", r)
	}
	for range 2 {
		want.Store(&Config{Listen: "127.0.0.1:0", Domain: "zkagent."})
		k.Changed()
		if r := <-reports; r.err != nil {
			t.Fatalf("a free port: %v", r.err)
		}
		addr := k.Addr()
		got, err := dns.Exchange(new(dns.Msg).SetQuestion("api-1.node.api.group.zkagent.", dns.TypeA), addr)
		if err != nil || len(got.Answer) != 1 {
			t.Errorf("got %v, %v", got, err)
		}
		want.Store(nil)
		k.Changed()
		if r := <-reports; r.err != nil || r.address != "" {
			t.Errorf("no listener: %+v", r)
		}
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			t.Error("it still listens")
		}
	}
	cancel()
	<-done
	if k.Addr() != "" {
		t.Errorf("after the end it is at %s", k.Addr())
	}
}

// Addr returns the address of the listener; empty: no listener.
func (k *Keeper) Addr() string {
	if s := k.server.Load(); s != nil && s.Addr().IsValid() {
		return s.Addr().String()
	}
	return ""
}
