package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
)

// A flat tree is converted under a follower that may not read ready. The server sends it
// no event for ready. The flat keys are deleted, and the follower keeps its last tree.
func TestWatcher_ConvertedUnderAReaderWithoutReady(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, z *memzk.Server) {
		flatTree(t, z, "1", false)
		closed := []jute.ACL{{Perms: jute.PermAll, Scheme: "digest", ID: "writer:x"}}
		must(t, z.CreateWith("/c/ready", nil, 0, closed))
		s := join(t, z)
		f := follow(t, s, config.Config{Name: "c", Path: "/c", Layout: config.LayoutFlat})
		after(5 * time.Second)
		must(t, z.Set("/c/ready", trees.Ready{Version: 1, Digest: trees.DigestOf(nil).String()}.Encode()))
		for i := range 4 {
			must(t, z.Delete(fmt.Sprintf("/c/k%d", i)))
			after(time.Second)
		}
		after(5 * time.Minute)
		must(t, f.stop())
		onlyWhole(t, f.all(), "1")
		must(t, s.Close())
	})
}
