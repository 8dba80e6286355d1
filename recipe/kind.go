package recipe

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// One path, one kind of recipe. Apache Curator's locks and read-write locks look
// only at contenders of their own kind. No lock looks at the leases of a semaphore.
// So two recipes of different kinds on one path would both be held. Each of our
// recipes makes its own znode first and then looks for other kinds. So of two that
// come together at least one sees the other. Curator's recipes do not look at ours.
// For that reason a holder looks again now and then, and gives up when a Curator
// client that came later holds the path too.

// KindError says that a path is used as another kind of recipe. It matches
// ErrKind.
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
	if want == "" {
		want = kindLock
	}
	if err == nil && permitsText.Match(data) {
		err = &KindError{Path: path, Want: want, Have: kindSemaphore, Child: "its data " + strings.TrimSpace(string(data))}
	}
	return err
}

// curatorsItem is the name of an item in one of Curator's queues: a DistributedQueue, with
// an id or a time between bars, or with a priority.
var curatorsItem = regexp.MustCompile(`^queue-(\|.*\||[01][0-9A-F]{8})?[0-9]{10}$`)

// otherLayout returns an error when an item shows a layout of Curator that this queue
// does not read. Without it a full queue would look empty.
func (q *items) otherLayout(names []string) error {
	for _, name := range names {
		m := curatorsItem.FindStringSubmatch(name)
		if _, ours := q.parse(name); ours || m == nil {
			continue
		}
		have := "DistributedQueue of Curator"
		switch {
		case strings.HasPrefix(m[1], "|"):
			have = "DistributedIdQueue or DistributedDelayQueue of Curator"
		case m[1] != "":
			have = "DistributedPriorityQueue of Curator"
		}
		return &KindError{Path: q.dir, Want: "queue of this layout", Have: have, Child: name}
	}
	return nil
}
