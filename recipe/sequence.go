package recipe

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Sequence is the number that ZooKeeper appends to the name of a sequential
// znode: the parent's count of creations, a signed 32-bit number. A server repeats the
// last one, 2147483647, and may give out negative ones while that create is under way.
type Sequence int32

// Before reports whether s was given out before t. Negative numbers come after the
// largest ones.
func (s Sequence) Before(t Sequence) bool { return int32(s)-int32(t) < 0 }

// spent reports whether the server has no more numbers. It may give out s again, so s
// stands for no place in an order.
func (s Sequence) spent() bool { return s == math.MaxInt32 || s < 0 }

// ParseSequence returns the number at the end of name: all text after the last
// occurrence of mark. ZooKeeper prints ten characters ("%010d"), so a negative
// number has a sign and nine or ten digits.
func ParseSequence(name, mark string) (Sequence, bool) {
	head, seq, ok := splitSequence(name)
	if !ok || !strings.HasSuffix(head, mark) {
		return 0, false
	}
	return seq, true
}

// splitSequence cuts the number off the end of a name. A sign is part of the number
// when there are not ten digits, or when the text before the sign ends in a mark of its
// own. So "lock--2147483648" is negative and "lock-2147483647" positive.
func splitSequence(name string) (string, Sequence, bool) {
	i := len(name)
	for i > 0 && name[i-1] >= '0' && name[i-1] <= '9' {
		i--
	}
	digits := len(name) - i
	negative := i > 1 && name[i-1] == '-' && (digits == 9 || name[i-2] == '-' || name[i-2] == '_' || name[i-2] == '|')
	switch {
	case negative && (digits == 9 || digits == 10):
		i--
	case digits != 10:
		return "", 0, false
	}
	n, err := strconv.ParseInt(name[i:], 10, 32)
	if err != nil {
		return "", 0, false
	}
	return name[:i], Sequence(n), true
}

// contender is one child of a path, with its place in the order.
type contender struct {
	name string
	seq  Sequence
	naming
}

// zooKeepers matches the text before the number in the names of ZooKeeper's own election,
// and of its lock recipe (org.apache.zookeeper.recipes.lock.WriteLock): x-<session id>-.
var zooKeepers = regexp.MustCompile(`^(n_|x--?[0-9]{1,19}-)$`)

// parseContender parses the name of a child, and reports whether it contends.
func parseContender(name string) (contender, bool) {
	head, seq, ok := splitSequence(name)
	if !ok {
		return contender{}, false
	}
	for _, n := range namings {
		if strings.HasSuffix(head, n.mark) {
			return contender{name, seq, n}, true
		}
	}
	if zooKeepers.MatchString(head) {
		return contender{name: name, seq: seq}, true
	}
	return contender{}, false
}

// predecessor returns the contender that the one at seq waits for: the nearest one
// before it, for a reader the nearest exclusive one. It takes the smallest distance and
// does not sort, because a counter that wraps orders only two numbers at a time. The
// second result is the list of children that do not contend.
func predecessor(names []string, seq Sequence, shared bool) (string, []string) {
	var pred string
	var foreign []string
	var nearest int32
	for _, name := range names {
		c, ok := parseContender(name)
		if !ok {
			foreign = append(foreign, name)
			continue
		}
		if shared && c.shared || !c.seq.Before(seq) {
			continue
		}
		if d := int32(seq) - int32(c.seq); pred == "" || d < nearest {
			pred, nearest = name, d
		}
	}
	return pred, foreign
}

// first returns the first contender. ok is false when there are no contenders.
func first(names []string) (contender, bool) {
	var lowest contender
	found := false
	for _, name := range names {
		c, ok := parseContender(name)
		if ok && (!found || c.seq.Before(lowest.seq)) {
			lowest, found = c, true
		}
	}
	return lowest, found
}
