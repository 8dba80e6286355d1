// Package config follows and reads configuration trees in ZooKeeper. Package fleet
// publishes them.
//
// A config is a tree of keys under a root znode; a key is a path relative to
// the root. There are three layouts:
//
//   - flat: the keys are znodes, and a znode named ready next to them says that
//     the tree is complete (ZooKeeper paper, 2.3: a new leader deletes ready,
//     changes the configuration, and creates ready again).
//
//   - versioned: contents are stored once, by digest; each version is an
//     immutable list of them, and ready names the version in use.
//
//   - plain: there is no ready rule. For trees that other tools write. With
//     leaves only znodes without children are keys.
//
// # Znodes
//
// A tree has these znodes:
//
//	<root>/ready                      flat: empty; versioned: JSON that names the version in use
//	<root>/versions/<S>               versioned: header and bucket digests
//	<root>/objects/<2 hex>/<sha256>   versioned: buckets and values
//	<root>/freeze                     no flip of ready while it exists
//	<root>/rollouts/...               see package fleet
//	<root>-lock/...                   the publishers' lock
//
// A program follows a config with [Follow], which continues across the sessions of a
// [session.Manager]. A program that manages its own sessions uses a [Watcher].
//
// # Guarantees
//
// A [Watcher] passes on only trees that are consistent at one moment. For a flat
// tree, ready must have existed with the same czxid from before the first read
// until after the last. For a versioned tree, every digest must match. Until the Watcher
// has read a consistent tree, the last one stays in use, and [Watcher.Status] gives the
// reason. The Watcher never passes on an unchanged tree twice.
//
// The ready rule gives no consistency when a writer ignores it.
package config

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
)

// DefaultMaxBytes is the default bound on the data of a followed tree.
const DefaultMaxBytes = 64 << 20

// Layouts of a config tree.
const (
	LayoutAuto      = trees.LayoutAuto      // flat or versioned, as ready says; waits for ready
	LayoutFlat      = trees.LayoutFlat      // keys are znodes beside ready
	LayoutVersioned = trees.LayoutVersioned // ready names an immutable version
	LayoutPlain     = trees.LayoutPlain     // keys are znodes, there is no ready rule
	LayoutLeaves    = trees.LayoutLeaves    // as plain, but a znode with children is not a key
)

// Bounds on a config tree.
const (
	// MaxValue is the largest value of a key in bytes. A versioned tree takes
	// a larger one when forced, and stores it in parts.
	MaxValue = trees.MaxValue
	// MaxKeys is the largest number of keys of a tree.
	MaxKeys = trees.MaxKeys
)

// Errors that callers branch on.
var (
	// ErrNotReady means that the tree does not exist, or is a flat tree without ready.
	ErrNotReady = trees.ErrNotReady
	// ErrBounds says that a tree or a publish is over a limit.
	ErrBounds = trees.ErrBounds
	// ErrNoVersion says that the version does not exist, or that the tree has no
	// history.
	ErrNoVersion = trees.ErrNoVersion
	// ErrGone says that the tree, or the version of it that is in use, was deleted.
	ErrGone = trees.ErrGone
	// ErrNoKey says that the tree has no such key.
	ErrNoKey = errors.New("no such key")
	// ErrDamaged says that the version in use does not match its digests or lacks
	// parts. A forced publish or a rollback replaces it.
	ErrDamaged = trees.ErrDamaged
	// ErrDigest is matched by errors about content that does not match its digest.
	ErrDigest = trees.ErrDigest
	// ErrFormat is matched by errors about a record of a later, unknown format.
	ErrFormat = trees.ErrFormat
)

// ValidateKey returns an error for an invalid key. A key is a path relative to the
// root, must be a valid znode path, and must not be reserved.
func ValidateKey(key string) error { return trees.ValidateKey(key) }

// Config describes one config tree to follow. The zero value of an optional field
// means its default.
type Config struct {
	Name string // label of the config; the trees have this name
	Path string // root znode
	// Layout is auto (default), flat, versioned, plain or leaves. A tree that is
	// followed with leaves says plain.
	Layout string
	// Splay is the largest random delay before a new version is read, so that the
	// hosts of a fleet do not all read at once. It applies to versioned trees. Of
	// the versions that come during the delay, only the latest is read.
	Splay time.Duration
	// NoDelta reads contents only from versions and objects, never from the
	// difference in ready. Only publishers can write versions and objects.
	NoDelta bool
	// MaxBytes bounds the data of the tree. 0 means DefaultMaxBytes, a negative
	// number no bound. When a tree exceeds it, the last good tree stays in use and
	// Status reports the excess.
	MaxBytes int64
	// Had says that the program has used this tree before, in an earlier process. A
	// tree that it has used and that does not exist is a problem.
	Had bool
	// Concurrency is how many requests for keys of a flat or plain tree may be under
	// way at a time. 0 means 16.
	Concurrency int
	// Problem, if not nil, is called when Status.Err changes: with the reason why
	// the latest state is unusable, or with nil. It must not block.
	Problem func(error)  `json:"-"`
	Logger  *slog.Logger // nil: discard
	Metrics *Metrics     // nil: not counted
}

func (c *Config) maxBytes() int64 { return max(cmp.Or(c.MaxBytes, DefaultMaxBytes), 0) }
