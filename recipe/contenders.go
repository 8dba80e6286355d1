package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
)

// Contender is a client that holds or waits at a path, as its znode describes it.
type Contender struct {
	Path     string    // of its znode
	Data     []byte    // usually its host name
	Holder   bool      // it holds; otherwise it waits
	Shared   bool      // a reader of a read-write lock
	Since    time.Time // when it came, by the clock of the server
	Czxid    int64     // its fencing token; that of a writer that became a reader is smaller
	Owner    int64     // session; 0: a persistent znode, which never leaves by itself
	Sequence Sequence  // its place in the order
}

// Contenders returns the contenders of a lock, a read-write lock or an election, in
// order. It reads every layout that this package knows. A path that does not exist
// has no contenders.
func Contenders(ctx context.Context, s *session.Session, path string) ([]Contender, error) {
	list, err := contenders(ctx, session.Usable(s, path), path, func(name string) bool {
		_, ok := parseContender(name)
		return ok
	})
	if err != nil {
		return nil, fmt.Errorf("contenders of %s: %w", path, err)
	}
	shared := true
	for i := range list {
		shared = shared && list[i].Shared
		list[i].Holder = i == 0 || shared
	}
	return list, nil
}

// contenders reads the children that want accepts. It sorts them by sequence number,
// and those with the same number by creation.
func contenders(ctx context.Context, s *session.Session, path string, want func(string) bool) ([]Contender, error) {
	children, err := s.GetChildren(ctx, path)
	if err != nil && !errors.Is(err, session.ErrNoNode) {
		return nil, err
	}
	list := []Contender{}
	for _, one := range children {
		switch {
		case !want(one.Name), errors.Is(one.Err, session.ErrNoNode):
			continue
		case one.Err != nil && !errors.Is(one.Err, session.ErrNoAuth):
			return nil, one.Err
		}
		c, _ := parseContender(one.Name)
		_, seq, _ := splitSequence(one.Name)
		list = append(list, Contender{
			Path: child(path, one.Name), Data: one.Data, Shared: c.shared, Since: time.UnixMilli(one.Stat.Ctime),
			Czxid: one.Stat.Czxid, Owner: one.Stat.EphemeralOwner, Sequence: seq,
		})
	}
	slices.SortFunc(list, func(a, b Contender) int {
		return cmp.Or(a.Sequence.compare(b.Sequence), cmp.Compare(a.Czxid, b.Czxid))
	})
	return list, nil
}

// Sequence is the number that ZooKeeper appends to the name of a sequential
// znode: the parent's count of creations, a signed 32-bit number. A server repeats the
// last one, 2147483647, and may give out negative ones while that create is under way.
type Sequence int32

// Before reports whether s was given out before t. Negative numbers come after the
// largest ones.
func (s Sequence) Before(t Sequence) bool { return s.compare(t) < 0 }

func (s Sequence) compare(t Sequence) int { return int(int32(s) - int32(t)) }

// spent reports whether the server has no more numbers. It may give out s again, so s
// stands for no place in an order.
func (s Sequence) spent() bool { return s == math.MaxInt32 || s < 0 }

// ParseSequence returns the number at the end of the name of a sequential znode: all text
// after the last occurrence of mark. ZooKeeper prints ten characters ("%010d"), so a
// negative number has a sign and nine or ten digits.
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

// Dialects name the layouts that a path may share with other clients. All
// contenders of a path must use dialects of one family: Curator (curator and
// curator-selector, go-zookeeper) or kazoo. Our contenders wait for those of the
// other family, but those do not wait for ours.
const (
	// Curator is the layout of Apache Curator, the default.
	Curator = "curator"
	// CuratorSelector is Curator's LeaderSelector. It names its candidates as
	// Curator names locks. Other recipes treat it as Curator.
	CuratorSelector = "curator-selector"
	// Kazoo is the layout of Python's kazoo.
	Kazoo = "kazoo"
)

// naming says how contenders are named. The text before the sequence number is the mark.
type naming struct {
	mark   string
	kind   string // of recipe; empty: kazoo's, whose kinds see each other, or unknown
	shared bool   // a reader of a read-write lock
	// hex names are <32 hex digits><mark><sequence>, as kazoo's are;
	// otherwise _c_<dashed uuid>-<mark><sequence>.
	hex bool
}

// The layouts that may share a path: Apache Curator's locks (go-zookeeper's -lock- is one),
// latches and read-write locks, and kazoo's locks. All use the one counter of the parent,
// so they have one order.
var (
	lockNames      = naming{"lock-", kindLock, false, false}
	latchNames     = naming{"latch-", kindElection, false, false}
	readNames      = naming{"__READ__", kindRW, true, false}
	writeNames     = naming{"__WRIT__", kindRW, false, false}
	kazooNames     = naming{"__lock__", "", false, true}
	kazooReadNames = naming{"__rlock__", "", true, true}

	namings = []naming{lockNames, latchNames, kazooNames, kazooReadNames, readNames, writeNames}
)

// unique returns the beginning of a name that no other znode has.
func (n naming) unique() string {
	if n.hex {
		return newHex()
	}
	return session.ProtectedPrefix(uuid.NewString())
}

// inDialect returns the naming in a dialect.
func inDialect(dialect string, curator, kazoo naming) (naming, error) {
	switch dialect {
	case "", Curator, CuratorSelector:
		return curator, nil
	case Kazoo:
		return kazoo, nil
	}
	return naming{}, fmt.Errorf("%w %q", ErrDialect, dialect)
}

// One path, one kind of recipe. Apache Curator's locks and read-write locks look
// only at contenders of their own kind. No lock looks at the leases of a semaphore.
// So two recipes of different kinds on one path would both be held. Each of our
// recipes makes its own znode first and then looks for other kinds. So of two that
// come together at least one sees the other. Curator's recipes do not look at ours.
// For that reason a holder looks again now and then, and gives up when a Curator
// client that came later holds the path too.

// KindError says that a path is used as another kind of recipe. It matches
// ErrKind. Elections and locks may share a path.
type KindError struct {
	Path  string // that both want
	Want  string // what this contender wants of the path
	Have  string // what the path is used as
	Child string // the znode that shows it
}

// Error implements error.
func (e *KindError) Error() string {
	return fmt.Sprintf("%s is used as a %s (%s), so it cannot be used as a %s", e.Path, e.Have, e.Child, e.Want)
}

// Is makes the error match ErrKind.
func (e *KindError) Is(target error) bool { return target == ErrKind }

// The kinds of recipe that a path may be used as.
const (
	kindLock      = "lock"
	kindRW        = "read-write lock"
	kindElection  = "election"
	kindSemaphore = "semaphore" // whose layout is unknown
	kindCurators  = "semaphore in Curator's layout"
	kindKazoos    = "semaphore in kazoo's layout"
)

// childKind returns the kind of recipe that the child's name shows to a contender that wants
// another; empty: unknown.
func childKind(name, want string) string {
	c, ok := parseContender(name)
	switch {
	case name == "leases" || name == "locks":
		return kindCurators
	case kazooLease.MatchString(name):
		return kindKazoos
	case !ok || c.kind == kindLock || c.kind == kindRW:
		return c.kind
	case want == kindCurators || want == kindKazoos:
		return kindLock // kazoo's
	}
	return ""
}

// otherKind returns an error when a child shows that the path is of another kind. It
// reports the first such child in the order of names. Elections and locks may share a
// path, because Curator's LeaderSelector is a lock.
func otherKind(path, want string, names []string) error {
	if want == "" || want == kindElection {
		return nil
	}
	var found *KindError
	for _, name := range names {
		have := childKind(name, want)
		if have != "" && have != want && (found == nil || name < found.Child) {
			found = &KindError{Path: path, Want: want, Have: have, Child: name}
		}
	}
	if found == nil {
		return nil
	}
	return found
}

// kazooLease is the name of a permit of kazoo's Semaphore.
var kazooLease = regexp.MustCompile(`^[0-9a-f]{32}$`)

var permitsText = regexp.MustCompile(`^\s*[0-9]{1,9}\s*$`)

// isSemaphore returns an error when the data of a lock's path is the number of
// permits of a semaphore. It reads only paths that have data, which are few.
func isSemaphore(ctx context.Context, s *session.Session, path, want string, stat session.Stat) error {
	if stat.DataLength == 0 || stat.DataLength > 16 || want == kindElection {
		return nil
	}
	data, _, err := s.Get(ctx, path)
	if errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNoAuth) {
		return nil
	}
	want = cmp.Or(want, kindLock)
	if err == nil && permitsText.Match(data) {
		err = &KindError{Path: path, Want: want, Have: kindSemaphore, Child: "its data " + strings.TrimSpace(string(data))}
	}
	return err
}

// curatorsItem is the name of an item in one of Curator's queues: a DistributedQueue, with
// an id or a time between bars, or with a priority.
var curatorsItem = regexp.MustCompile(`^queue-(\|.*\||[01][0-9A-F]{8})?[0-9]{10}$`)

// otherLayout returns an error when an item shows a layout of Curator that this queue
// does not read, and none is ours. Without it a full queue would look empty.
func (q *items) otherLayout(names []string) error {
	var other error
	for _, name := range names {
		if _, ours := q.parse(name); ours {
			return nil
		}
		m := curatorsItem.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		have := "DistributedQueue of Curator"
		switch {
		case strings.HasPrefix(m[1], "|"):
			have = "DistributedIdQueue or DistributedDelayQueue of Curator"
		case m[1] != "":
			have = "DistributedPriorityQueue of Curator"
		}
		other = &KindError{Path: q.dir, Want: "queue of this layout", Have: have, Child: name}
	}
	return other
}
