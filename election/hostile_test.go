package election

import (
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/recipe"
	"github.com/zkagent/zkagent/view"
)

// The data of a leader's znode is anybody's text: only a name becomes the id.
func TestLeader_IDThatIsNoName(t *testing.T) {
	for _, dialect := range []string{recipe.Curator, recipe.Kazoo} {
		for _, data := range []string{"x;\n}\nserver { root /; }\x1b[2J", "-rf", "`id`", "a\u202eb", "a b"} {
			node := "/e/_c_00000000-0000-0000-0000-000000000000-latch-0000000000"
			if dialect == recipe.Kazoo {
				node = "/e/00000000000000000000000000000000__lock__0000000000"
			}
			bubble(t, func(t *testing.T, w *memzk.Server) {
				must(t, w.Create("/e", nil))
				must(t, w.Create(node, []byte(data)))
				s := dialMem(t, w, "a")
				got := make(chan view.Leader, 10)
				go func() { _ = Observe(t.Context(), s, "/e", dialect, func(l view.Leader) { got <- l }) }()
				select {
				case l := <-got:
					if l.ID != "" || l.RawID != data || l.Znode != node || l.Term == 0 {
						t.Errorf("%s, %q: got %+v", dialect, data, l)
					}
				case <-time.After(time.Minute): //nolint:forbidigo // one timer in a test
					t.Errorf("%s, %q: nobody leads", dialect, data)
				}
			})
		}
	}
}
