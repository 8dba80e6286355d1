package election

import (
	"testing"

	"github.com/zkagent/zkagent/internal/peers"
	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/recipe"
)

// Candidates of ours and of others lead in turn on one path: theirs first and
// ours next, then ours first and theirs next.

func TestInterop_KazooElection(t *testing.T) {
	p := peers.Kazoo(t, zktest.Shared(t).Addr())
	leadInTurn(t, p, "election", recipe.Kazoo, true)
}

func TestInterop_JavaElections(t *testing.T) {
	p := peers.Curator(t, zktest.Shared(t).Addr(), peers.Quick)
	leadInTurn(t, p, "latch", recipe.Curator, true)
	leadInTurn(t, p, "selector", recipe.CuratorSelector, true)
	// ZooKeeper's own LeaderElectionSupport reads a number behind "n_" in every
	// child and fails on names that have none: ours can follow it, and not lead
	// before it.
	leadInTurn(t, p, "support", recipe.Curator, false)
}

func leadInTurn(t *testing.T, p *peers.Peer, kind, dialect string, both bool) {
	t.Helper()
	ctx, s, path := testContext(t), dialReal(t), zktest.Root(t)+"/"+kind
	p.Tell(t, "acquire %s %s", kind, path)
	p.Expect(ctx, t, "held "+kind)
	ours := run(t, s, Config{Name: "e", Path: path, ID: "ours", Dialect: dialect})
	peers.AwaitChildren(ctx, t, s, path, 2)
	if len(ours.terms) > 0 {
		t.Fatalf("%s: ours leads beside the peer", kind)
	}
	p.Tell(t, "release %s", kind)
	recv(ctx, t, ours.terms)
	p.Expect(ctx, t, "released "+kind)
	if both {
		p.Tell(t, "acquire %s %s", kind, path)
		peers.AwaitChildren(ctx, t, s, path, 2)
		p.Silent(t)
	}
	must(t, ours.stop())
	if both {
		p.Expect(ctx, t, "held "+kind)
		p.Tell(t, "release %s", kind)
		p.Expect(ctx, t, "released "+kind)
	}
}
