package fleet

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/trees"
)

// Paths of one rollout.
func rolloutPath(root, name string) string     { return trees.RolloutsPath(root) + "/" + name }
func coordinatorPath(root, name string) string { return rolloutPath(root, name) + "/coordinator" }
func progressPath(root, name string) string    { return rolloutPath(root, name) + "/progress" }
func hostsPath(root, name string) string       { return rolloutPath(root, name) + "/hosts" }
func gatePath(root, name string) string        { return rolloutPath(root, name) + "/gate" }

func snapshotPath(root, name, shard string) string { return hostsPath(root, name) + "/" + shard }

func recordPath(root, name, id string) string {
	return snapshotPath(root, name, Shard(id)) + "/" + id
}

func rolloutName(n int64) string { return fmt.Sprintf("r-%010d", n) }

func rolloutNumber(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, "r-")
	if !ok || len(digits) != 10 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil && n >= 0
}

// Purposes of a draw.
const (
	drawCoordinate = "coordinate" // who stands for coordinator
	drawCanary     = "canary"     // who goes first
	drawSample     = "sample"     // who shows differences in a dry run
)

// draw returns a number in [0,1) that depends on the purpose, the rollout and the
// host. The purpose matters: the hosts that try a version first must not be those
// that coordinate, because the version may kill them.
func draw(purpose, rollout, id string) float64 {
	sum := sha256.Sum256([]byte(purpose + "/" + rollout + "/" + id))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}
