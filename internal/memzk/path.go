package memzk

import (
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// Paths that a server always has.
const (
	rootPath      = "/"
	zookeeperPath = "/zookeeper"
	quotaPath     = "/zookeeper/quota"
	configPath    = "/zookeeper/config"
)

func isSpecial(path string) bool {
	return path == rootPath || path == zookeeperPath || path == quotaPath || path == configPath
}

// parentOf returns the path of the parent as a server computes it: "" for a
// child of the root, and false without a slash.
func parentOf(path string) (string, bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", false
	}
	return path[:i], true
}

func baseName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// watchPath returns path as watches name it.
func watchPath(path string) string {
	if path == "" {
		return rootPath
	}
	return path
}

// validatePath checks path as ZooKeeper's PathUtils does.
func validatePath(path string) error {
	bad := Error(jute.ErrCodeBadArguments)
	if path == "" || path[0] != '/' {
		return bad
	}
	if path == rootPath {
		return nil
	}
	if path[len(path)-1] == '/' {
		return bad
	}
	for name := range strings.SplitSeq(path[1:], "/") {
		if name == "" || name == "." || name == ".." {
			return bad
		}
	}
	for _, r := range path {
		if badRune(r) {
			return bad
		}
	}
	return nil
}

// badRune has ZooKeeper's ranges. It counts in UTF-16, so
// that everything outside the basic plane is a pair of surrogates and refused.
func badRune(r rune) bool {
	switch {
	case r <= 0x1f, r >= 0x7f && r <= 0x9f, r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
		return true
	}
	return false
}
