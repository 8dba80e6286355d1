package fleet

import (
	"fmt"
	"strconv"
	"strings"
)

// Paths of a tree's rollouts, all below its root.
func rolloutsPath(root string) string    { return root + "/rollouts" }
func currentPath(root string) string     { return root + "/rollouts/current" }
func coordinatorPath(root string) string { return root + "/rollouts/coordinator" }
func subscribersPath(root string) string { return root + "/subscribers" }
func freezePath(root string) string      { return root + "/freeze" }
func readyPath(root string) string       { return root + "/ready" }

// Paths of one rollout.
func rolloutPath(root, name string) string  { return root + "/rollouts/" + name }
func votesPath(root, name string) string    { return rolloutPath(root, name) + "/votes" }
func decisionPath(root, name string) string { return rolloutPath(root, name) + "/decision" }
func controlPath(root, name string) string  { return rolloutPath(root, name) + "/control" }
func permitsPath(root, name string) string  { return rolloutPath(root, name) + "/permits" }
func hostsPath(root, name string) string    { return rolloutPath(root, name) + "/hosts" }
func haltPath(root, name string) string     { return rolloutPath(root, name) + "/halt" }
func donePath(root, name string) string     { return rolloutPath(root, name) + "/done" }

// rolloutName is the name of the rollout of that number.
func rolloutName(n int64) string { return fmt.Sprintf("r-%010d", n) }

// rolloutNumber is the number in a rollout's name.
func rolloutNumber(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, "r-")
	if !ok || len(digits) != 10 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil && n >= 0
}
