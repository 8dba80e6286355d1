package session

import (
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// JoinPath joins elements into a path with single slashes between them.
// JoinPath("/", "a", "b") is "/a/b"; JoinPath("/a", "") is "/a".
func JoinPath(elem ...string) string {
	var b strings.Builder
	for _, e := range elem {
		if e = strings.Trim(e, "/"); e != "" {
			b.WriteByte('/')
			b.WriteString(e)
		}
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}

// SplitPath returns the parent of path and its last element. The parent of "/a"
// is "/".
func SplitPath(path string) (string, string) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/", strings.TrimPrefix(path, "/")
	}
	return path[:i], path[i+1:]
}

// ValidatePath returns an error when ZooKeeper does not accept path. A path is absolute,
// has no slash at the end, no empty, "." or ".." element, and no control or private-use
// characters. The error matches ErrBadPath.
func ValidatePath(path string) error {
	if err := jute.CheckPath(path); err != nil {
		return fmt.Errorf("%w: %w", ErrBadPath, err)
	}
	return nil
}

// full returns path below the chroot, as servers know it.
func full(chroot, path string) string {
	switch {
	case chroot == "":
		return path
	case path == "/":
		return chroot
	}
	return chroot + path
}

// strip is the reverse of full.
func strip(chroot, path string) string {
	if chroot == "" {
		return path
	}
	if path == chroot {
		return "/"
	}
	if rest, ok := strings.CutPrefix(path, chroot); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return path
}
