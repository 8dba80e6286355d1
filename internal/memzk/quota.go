package memzk

import (
	"fmt"
	"strings"
)

// A quota of a path is two znodes below /zookeeper/quota and that path: what it
// is limited to, which clients write, and what it uses, which the server writes.
const (
	limitsName = "/zookeeper_limits"
	statsName  = "/zookeeper_stats"
)

// quotaOf returns the nearest path at or above path that has a quota, or "".
func (t *tree) quotaOf(path string) string {
	if len(t.nodes[quotaPath].children) == 0 {
		return ""
	}
	for prefix := path; prefix != "" && prefix != rootPath; prefix, _ = parentOf(prefix) {
		if t.nodes[quotaPath+prefix+limitsName] != nil {
			return prefix
		}
	}
	return ""
}

// account notes in the znode for it what a change of path makes of the usage of
// its quota. That is no change of the znode itself: it has no version.
func (t *tree) account(path string, bytes, count int) {
	if prefix, ok := strings.CutPrefix(path, quotaPath); ok && count > 0 {
		if prefix, ok = strings.CutSuffix(prefix, statsName); ok {
			usedBytes, usedCount := t.usage(prefix)
			t.nodes[path].data = fmt.Appendf(nil, "count=%d,bytes=%d", usedCount, usedBytes)
		}
		return
	}
	prefix := t.quotaOf(path)
	if prefix == "" {
		return
	}
	stats := t.nodes[quotaPath+prefix+statsName]
	if stats == nil {
		return
	}
	var usedCount, usedBytes int
	if n, err := fmt.Sscanf(string(stats.data), "count=%d,bytes=%d", &usedCount, &usedBytes); n == 2 && err == nil {
		stats.data = fmt.Appendf(nil, "count=%d,bytes=%d", usedCount+count, usedBytes+bytes)
	}
}

// usage counts the data and the znodes at and below path.
func (t *tree) usage(path string) (bytes, count int64) { //nolint:nonamedreturns // Two numbers of one type.
	for p, n := range t.nodes {
		if p == path || strings.HasPrefix(p, path+"/") {
			bytes += int64(len(n.data))
			count++
		}
	}
	return bytes, count
}
