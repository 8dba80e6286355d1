package recipe

import (
	"errors"
	"fmt"
)

// Errors that callers branch on. They are matched with [errors.Is]; the errors
// of package session (ErrExpired, ErrClosed, ErrSuspended, ErrNoAuth, ...) come
// through wrapped.
var (
	// ErrNotHeld means that what was to be used or given back is not held:
	// it was given back before, or its znode is gone.
	ErrNotHeld = errors.New("not held")
	// ErrLost is the cause of a hold's context when its znode was deleted,
	// or replaced, by somebody else. It matches ErrNotHeld.
	ErrLost = fmt.Errorf("the znode is gone: %w", ErrNotHeld)
	// ErrReleased is the cause of a hold's context after Release.
	ErrReleased = errors.New("released")
	// ErrHeld means that somebody else has it: the answer of the Try methods.
	ErrHeld = errors.New("held by another")
	// ErrUpgrade means that a write lock was asked for under the context of
	// a read lock on the same path, which would wait for itself.
	ErrUpgrade = errors.New("a read lock cannot be upgraded")
	// ErrReentrant means that a lock was asked for under the context of a
	// hold of the same lock, which would wait for itself.
	ErrReentrant = errors.New("already held by the caller")
	// ErrPermits means that a contender disagrees on the number of permits;
	// the error is a *PermitsError.
	ErrPermits = errors.New("number of permits differs")
	// ErrKind means that a path is used as another kind of recipe; the error is
	// a *KindError.
	ErrKind = errors.New("the path is used as another kind of recipe")
	// ErrTooLong means that a queue has too many items to be listed in one
	// reply. Len, Put and (of a FIFO queue) nothing else still work.
	ErrTooLong = errors.New("too long to list")
	// ErrFull means that a bounded queue has reached its length.
	ErrFull = errors.New("queue is full")
	// ErrEmpty is the answer of TryTake and TryReserve when nothing is there.
	ErrEmpty = errors.New("queue is empty")
	// ErrTooLarge means that a body is over the limit; it was not sent.
	ErrTooLarge = errors.New("body is too large")
	// ErrPriority means that a priority is outside 0...999.
	ErrPriority = errors.New("priority is outside 0...999")
	// ErrRound means that the path of a double barrier was used before: a
	// round that is over left its ready znode, or members of it.
	ErrRound = errors.New("the barrier's round is over")
	// ErrInTheWay means that a znode that is not ours to replace stands
	// where ours should be: a configuration error.
	ErrInTheWay = errors.New("a persistent znode is in the way")
	// ErrDecided means that a transaction has its result already.
	ErrDecided = errors.New("the transaction is decided")
	// ErrNoSite means that a transaction does not name the site.
	ErrNoSite = errors.New("not a site of the transaction")
	// ErrFormat means that a znode holds data, or a caller gave a value, that the
	// recipe cannot work with.
	ErrFormat = errors.New("unusable value")
	// ErrRange means that a counter would leave the range of its layout.
	ErrRange = errors.New("out of the counter's range")
	// ErrDialect means that a layout's name is not known to the recipe.
	ErrDialect = errors.New("unknown dialect")
)

// PermitsError tells both numbers of permits of a semaphore.
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
