package recipe

import (
	"errors"
	"fmt"
)

// Errors that callers branch on. Match them with [errors.Is]. Errors of package
// session (ErrExpired, ErrClosed, ErrSuspended, ErrNoAuth, ...) are wrapped.
var (
	// ErrNotHeld means that the caller uses or releases something that it does
	// not hold: it was released before, or its znode is gone.
	ErrNotHeld = errors.New("not held")
	// ErrLost is the cause of a hold's context when another client deleted or
	// replaced its znode. It matches ErrNotHeld.
	ErrLost = fmt.Errorf("the znode is gone: %w", ErrNotHeld)
	// ErrReleased is the cause of a hold's context after Release.
	ErrReleased = errors.New("released")
	// ErrHeld means that another client holds it. The Try methods return it.
	ErrHeld = errors.New("held by another")
	// ErrUpgrade means that a caller asks for a write lock under the context of
	// a read lock on the same path. It would wait for itself.
	ErrUpgrade = errors.New("a read lock cannot be upgraded")
	// ErrReentrant means that a caller asks for a lock under the context of a
	// hold of the same lock. It would wait for itself.
	ErrReentrant = errors.New("already held by the caller")
	// ErrPermits means that a contender disagrees on the number of permits;
	// the error is a *PermitsError.
	ErrPermits = errors.New("number of permits differs")
	// ErrKind means that a path is used as another kind of recipe; the error is
	// a *KindError.
	ErrKind = errors.New("the path is used as another kind of recipe")
	// ErrTooLong means that the list of a queue's items does not fit into one
	// reply. Only Len and Put still work.
	ErrTooLong = errors.New("too long to list")
	// ErrFull means that a bounded queue has reached its length.
	ErrFull = errors.New("queue is full")
	// ErrEmpty means that a queue has no item to deliver. TryTake, TryReserve
	// and Peek return it.
	ErrEmpty = errors.New("queue is empty")
	// ErrTooLarge means that a body is over the limit. It was not sent.
	ErrTooLarge = errors.New("body is too large")
	// ErrPriority means that a priority is outside 0...999.
	ErrPriority = errors.New("priority is outside 0...999")
	// ErrRound means that the path of a double barrier was used before: a previous
	// round left its ready znode or members.
	ErrRound = errors.New("the barrier's round is over")
	// ErrInTheWay means that a znode which we may not replace exists at our
	// path. It is a configuration error.
	ErrInTheWay = errors.New("a persistent znode is in the way")
	// ErrSequence means that the server has used up the sequence numbers of a path.
	// Delete the path, with its children, while no client uses it: a new one starts
	// at 0.
	ErrSequence = errors.New("the path has no sequence numbers left: delete it while no client uses it, and it starts again at 0")
	// ErrDecided means that a transaction has its result already.
	ErrDecided = errors.New("the transaction is decided")
	// ErrNoSite means that a transaction does not name the site.
	ErrNoSite = errors.New("not a site of the transaction")
	// ErrFormat means that the recipe cannot use the data of a znode, or a value
	// of the caller.
	ErrFormat = errors.New("unusable value")
	// ErrRange means that a counter would leave the range of its layout.
	ErrRange = errors.New("out of the counter's range")
	// ErrDialect means that the recipe does not know the layout's name.
	ErrDialect = errors.New("unknown dialect")
)

// PermitsError has the two numbers of permits that differ. It matches ErrPermits.
type PermitsError struct {
	Path string // of the semaphore
	Want int    // what this contender was configured with
	Have string // the text that stands in the znode
}

// Error implements error.
func (e *PermitsError) Error() string {
	return fmt.Sprintf("this contender says %d permits, %s says %q", e.Want, e.Path, e.Have)
}

// Is makes the error match ErrPermits.
func (e *PermitsError) Is(target error) bool { return target == ErrPermits }
