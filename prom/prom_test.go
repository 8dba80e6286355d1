package prom_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/prom"
	"github.com/zkagent/zkagent/session"
)

// A candidate that leads once in a session is counted in every metric that it moves.
func TestSessionAndElection(t *testing.T) {
	srv := memzk.New(memzk.Options{})
	defer srv.Close()
	reg := prometheus.NewPedanticRegistry()
	s, err := session.Dial(t.Context(), session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial, Metrics: prom.NewSession(reg)})
	if err != nil {
		t.Fatal(err)
	}
	terms := prom.NewElection(reg)
	candidate := election.New(election.Config{Name: "worker", Path: "/elections/worker", ID: "a", Once: true, Metrics: terms, Lead: func(context.Context, election.Term) {}})
	if err := candidate.Run(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() > 0 || m.GetHistogram().GetSampleCount() > 0 || f.GetName() == "zkagent_session_state" && m.GetGauge().GetValue() == 1 {
				got = append(got, f.GetName()+" "+m.GetLabel()[0].GetValue())
			}
		}
	}
	for _, want := range []string{"zkagent_session_state closed", "zkagent_terms_total worker", "zkagent_zk_bytes_total in", "zkagent_zk_bytes_total out", "zkagent_zk_request_duration_seconds create2"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing in %q", want, got)
		}
	}
}

// A program shows the metrics of its session beside its own.
func ExampleNewSession() {
	srv := memzk.New(memzk.Options{})
	defer srv.Close()
	reg := prometheus.NewRegistry()
	cfg := session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial, Metrics: prom.NewSession(reg)}
	s, err := session.Dial(context.Background(), cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	families, _ := reg.Gather()
	fmt.Println("registered:", len(families) > 0)
	// Output: registered: true
}
