// Package trees has how a config tree is stored in ZooKeeper: its paths and records,
// digests, versions, and reads of what is stored. Package config follows and reads with
// it; package fleet publishes with it.
package trees

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"github.com/zkagent/zkagent/session"
)

// Layouts of a config tree.
const (
	LayoutAuto      = "auto"
	LayoutFlat      = "flat"
	LayoutVersioned = "versioned"
	LayoutPlain     = "plain"
	LayoutLeaves    = "leaves"
)

// First path elements that are never keys.
const (
	ElemReady       = "ready"
	ElemVersions    = "versions"
	elemObjects     = "objects"
	elemSubscribers = "subscribers"
	elemRollouts    = "rollouts"
	ElemFreeze      = "freeze"
)

// Bounds on what may be published. Package config exports the first three.
const (
	MaxValue     = 900_000
	MaxKeys      = 100_000
	MaxKeyLength = 2048

	// MaxObject is the largest object in one znode: with path and header it
	// must stay below the server's default limit of 1,048,575 bytes a request.
	MaxObject = MaxValue
	// MaxForcedValue is the largest value in parts.
	MaxForcedValue = 64 << 20
)

// TooLarge returns the error of a tree that exceeds the limit.
func TooLarge(bytes int64, count int, what string, limit int64) error {
	const mib = 1 << 20
	return fmt.Errorf("the tree has %.1f MiB in %d %s, %.1f MiB more than max_bytes allows (%.1f MiB); the last good tree stays in use: %w",
		float64(bytes)/mib, count, what, float64(bytes-limit)/mib, float64(limit)/mib, ErrBounds)
}

// Errors that package config exports, with their meaning.
var (
	ErrNotReady  = errors.New("tree is not ready")
	ErrBounds    = errors.New("over the limit")
	ErrNoVersion = errors.New("no such version")
	ErrDamaged   = errors.New("the stored data is damaged")
)

// Reserved returns the first path elements that are never keys.
func Reserved() []string {
	return []string{ElemReady, ElemVersions, elemObjects, elemSubscribers, elemRollouts, ElemFreeze}
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

// ReadyPath is the znode that names the version in use.
func ReadyPath(root string) string { return session.JoinPath(root, ElemReady) }

// VersionsPath is where the versions of a tree are.
func VersionsPath(root string) string { return root + "/" + ElemVersions }

// VersionPath is the znode of a version.
func VersionPath(root string, n int64) string { return VersionsPath(root) + fmt.Sprintf("/%010d", n) }

// ObjectsPath is where the contents of versions are.
func ObjectsPath(root string) string { return root + "/" + elemObjects }

// RolloutsPath is where the rollouts of a tree are.
func RolloutsPath(root string) string { return session.JoinPath(root, elemRollouts) }

// FreezePath exists while the tree is frozen.
func FreezePath(root string) string { return root + "/" + ElemFreeze }

// AllErrors joins a list of errors; nil when the list is empty. Several errors print one
// per line.
func AllErrors(errs *multierror.Error) error {
	if errs == nil {
		return nil
	}
	errs.ErrorFormat = func(list []error) string {
		if len(list) == 1 {
			return list[0].Error()
		}
		lines := []string{fmt.Sprintf("%d errors:", len(list))}
		for _, err := range list {
			lines = append(lines, "  "+strings.ReplaceAll(err.Error(), "\n", "\n  "))
		}
		return strings.Join(lines, "\n")
	}
	return errs.ErrorOrNil()
}
