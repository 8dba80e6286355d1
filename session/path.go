package session

import (
	"fmt"
	"strings"
	"unicode/utf8"
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
	switch {
	case path == "/":
		return nil
	case path == "":
		return fmt.Errorf("%w: empty", ErrBadPath)
	case path[0] != '/':
		return fmt.Errorf("%w: %q is not absolute; znode paths begin with a slash", ErrBadPath, path)
	case path[len(path)-1] == '/':
		return fmt.Errorf("%w: %q ends with a slash", ErrBadPath, path)
	case !utf8.ValidString(path):
		return fmt.Errorf("%w: %q is not UTF-8", ErrBadPath, path)
	}
	for e := range strings.SplitSeq(path[1:], "/") {
		switch e {
		case "":
			return fmt.Errorf("%w: %q has an empty element", ErrBadPath, path)
		case ".", "..":
			return fmt.Errorf("%w: %q has the element %q, which ZooKeeper does not allow", ErrBadPath, path, e)
		}
	}
	for _, r := range path {
		if badRune(r) {
			return fmt.Errorf("%w: %q has the character %U, which ZooKeeper does not allow", ErrBadPath, path, r)
		}
	}
	return nil
}

// badRune reports whether ZooKeeper's PathUtils refuses a character. Java sees characters
// beyond the basic plane as surrogates, which it refuses too.
func badRune(r rune) bool {
	return r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
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
