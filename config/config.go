package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zkagent/zkagent/session"
)

// Layouts of a config tree.
const (
	LayoutAuto      = "auto"      // flat or versioned, as ready says; waits for ready
	LayoutFlat      = "flat"      // keys are znodes beside ready
	LayoutVersioned = "versioned" // ready names an immutable version
	LayoutPlain     = "plain"     // keys are znodes, there is no ready rule
)

// First path elements that are never keys.
const (
	elemReady       = "ready"
	elemVersions    = "versions"
	elemObjects     = "objects"
	elemSubscribers = "subscribers"
	elemRollouts    = "rollouts"
	elemFreeze      = "freeze"
)

// Bounds on what may be published.
const (
	// MaxValue is the largest value of a key in bytes. A versioned tree takes
	// a larger one when forced, and stores it in parts.
	MaxValue = 900_000
	// MaxKeys is the largest number of keys of a tree.
	MaxKeys = 100_000
	// MaxRatio is how many times larger or smaller than the tree in use a new tree
	// may be, unless forced.
	MaxRatio = 5
	// DefaultMaxBytes is the default bound on the data of a followed tree.
	DefaultMaxBytes = 64 << 20
	// MaxKeyLength is the longest key in bytes.
	MaxKeyLength = 2048

	// maxObject is the largest object in one znode: with path and header it
	// must stay below the server's default limit of 1,048,575 bytes a request.
	maxObject = MaxValue
	// maxForcedValue is the largest value in parts.
	maxForcedValue = 64 << 20
)

// Config describes one config tree to follow. The zero value of an optional field
// means its default.
type Config struct {
	Name string // label of the config; the trees have this name
	Path string // root znode
	// Layout is auto (default), flat, versioned or plain.
	Layout string
	// Splay is the largest random delay before a new version is read, so that the
	// hosts of a fleet do not all read at once. It applies to versioned trees. Of
	// the versions that come during the delay, only the newest is read.
	Splay time.Duration
	// NoDelta reads contents only from versions and objects, never from the
	// difference in ready. Only publishers can write versions and objects.
	NoDelta bool
	// MaxBytes bounds the data of the tree. 0 means DefaultMaxBytes, a negative
	// number no bound. When a tree exceeds it, the last good tree stays in use and
	// Status reports the excess.
	MaxBytes int64
	// Problem, if not nil, is called when Status.Err changes: with the reason why
	// the newest state is unusable, or with nil. It must not block.
	Problem func(error)  `json:"-"`
	Logger  *slog.Logger // nil: discard
	Metrics *Metrics     // nil: not counted

	concurrency int // requests in flight; 0: the mirror's default. For tests.
}

// maxBytes is the bound of the data; 0: none.
func (c *Config) maxBytes() int64 { return max(cmp.Or(c.MaxBytes, DefaultMaxBytes), 0) }

// tooLarge returns the error of a tree that exceeds the limit.
func tooLarge(bytes int64, count int, what string, limit int64) error {
	const mib = 1 << 20
	return fmt.Errorf("the tree has %.1f MiB in %d %s, %.1f MiB more than max_bytes allows (%.1f MiB); the last good tree stays in use: %w",
		float64(bytes)/mib, count, what, float64(bytes-limit)/mib, float64(limit)/mib, ErrBounds)
}

// Errors that callers branch on.
var (
	// ErrNotReady says that a flat tree has no ready, or that there is no tree.
	ErrNotReady = errors.New("tree is not ready")
	// ErrUnfinished says that a flat tree has keys and no ready: a writer is at
	// work, or died before it finished.
	ErrUnfinished = errors.New("an earlier publish was not finished")
	// ErrConflict says that the tree in use is not the expected one.
	ErrConflict = errors.New("another version is in use")
	// ErrFrozen says that the config is frozen.
	ErrFrozen = errors.New("config is frozen")
	// ErrBounds says that a publish exceeds a bound.
	ErrBounds = errors.New("exceeds a bound")
	// ErrNoVersion says that the version does not exist, or that the tree has no
	// history.
	ErrNoVersion = errors.New("no such version")
	// ErrNoKey says that the tree has no such key.
	ErrNoKey = errors.New("no such key")
	// ErrDamaged says that the version in use does not match its digests or lacks
	// parts. A forced publish or a rollback replaces it.
	ErrDamaged = errors.New("what is stored is damaged")
	// ErrUnchanged says that there is nothing to publish.
	ErrUnchanged = errors.New("nothing changed")
)

// Reserved returns the first path elements that are never keys.
func Reserved() []string {
	return []string{elemReady, elemVersions, elemObjects, elemSubscribers, elemRollouts, elemFreeze}
}

// IsReserved reports whether a path relative to the root belongs to the
// protocol and not to the keys.
func IsReserved(key string) bool {
	first, _, _ := strings.Cut(key, "/")
	return slices.Contains(Reserved(), first)
}

// ValidateKey returns an error for an invalid key. A key is a path relative to the
// root, must be a valid znode path, and must not be reserved.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return errors.New("key is empty")
	case len(key) > MaxKeyLength:
		return fmt.Errorf("key %.40q... has %d bytes, at most %d are allowed", key, len(key), MaxKeyLength)
	case !utf8.ValidString(key):
		return fmt.Errorf("key %q is not UTF-8", key)
	case strings.HasPrefix(key, "/") || path.Clean(key) != key || key == "." || strings.HasPrefix(key, "../") || key == "..":
		return fmt.Errorf("key %q is not a clean relative path", key)
	case IsReserved(key):
		first, _, _ := strings.Cut(key, "/")
		return fmt.Errorf("key %q: %q is reserved", key, first)
	}
	if err := session.ValidatePath("/" + key); err != nil {
		return fmt.Errorf("key %q: %s", key, err.Error()) // the caller did not type a path
	}
	return nil
}

// discard returns l, or a logger that drops everything.
func discard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
