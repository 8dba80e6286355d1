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

func watchPath(path string) string {
	if path == "" {
		return rootPath
	}
	return path
}

func validatePath(path string) error {
	if jute.CheckPath(path) != nil {
		return Error(jute.ErrCodeBadArguments)
	}
	return nil
}
