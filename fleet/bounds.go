package fleet

import (
	"fmt"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/view"
)

const (
	// MaxRatio is how many times larger or smaller than the tree in use a new tree
	// may be, unless forced.
	MaxRatio = 5
	// maxMessage bounds the message of a version in bytes.
	maxMessage = 16 << 10
	// ratioFloor is the size of a tree in bytes below which checkRatio does not
	// apply: in a small tree, a value of one byte may become one of ten.
	ratioFloor = 4096
)

// checkRatio rejects a change of the size beyond MaxRatio, which is usually a mistake.
func checkRatio(old *view.Keys, keys map[string][]byte) error {
	var was, now int64
	for _, k := range old.All() {
		was += int64(len(k.Value))
	}
	for _, v := range keys {
		now += int64(len(v))
	}
	if n := int64(old.Len()); n > 0 && exceeds(n, int64(len(keys))) {
		return fmt.Errorf("refusing to change the tree from %d to %d keys, more than a factor of %d: %w", n, len(keys), MaxRatio, config.ErrBounds)
	}
	if max(was, now) > ratioFloor && was > 0 && exceeds(was, now) {
		return fmt.Errorf("refusing to change the tree from %d to %d bytes, more than a factor of %d: %w", was, now, MaxRatio, config.ErrBounds)
	}
	return nil
}

func exceeds(a, b int64) bool { return a > MaxRatio*b || b > MaxRatio*a }
