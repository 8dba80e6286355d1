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
	if err := compareSizes(int64(old.Len()), int64(len(keys)), "keys"); err != nil || max(was, now) <= ratioFloor {
		return err
	}
	return compareSizes(was, now, "bytes")
}

func compareSizes(was, now int64, of string) error {
	verb := "grow"
	switch {
	case was == 0 || was <= MaxRatio*now && now <= MaxRatio*was:
		return nil
	case now < was:
		verb = "shrink"
	}
	return fmt.Errorf("refusing to %s the tree from %d to %d %s, by more than a factor of %d: %w", verb, was, now, of, MaxRatio, config.ErrBounds)
}
