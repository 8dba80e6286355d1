package memzk

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// A quota of a path is two znodes below /zookeeper/quota and that path: what it
// is limited to, which clients write, and what it uses, which the server writes.
const (
	limitsName = "/zookeeper_limits"
	statsName  = "/zookeeper_stats"
)

// checkQuota refuses a change that goes over a hard limit of the nearest quota
// at or above path. What counts is the tree before the transaction, as on a
// real server. Usage is counted when it is needed.
func (p *preparer) checkQuota(path string, bytes, count int64) error {
	if !p.s.opts.EnforceQuota {
		return nil
	}
	t := p.s.primary.tree
	prefix := t.quotaOf(path)
	if prefix == "" {
		return nil
	}
	limits := t.get(quotaPath + prefix + limitsName)
	usedBytes, usedCount := t.usage(prefix)
	if over(limits.data, "byteHardLimit", usedBytes+bytes) || over(limits.data, "countHardLimit", usedCount+count) {
		return Error(jute.ErrCodeQuotaExceeded)
	}
	return nil
}

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

// over reports whether the limit of that name is set and less than used. The
// text is like "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3".
func over(limits []byte, name string, used int64) bool {
	for part := range strings.FieldsFuncSeq(string(limits), func(r rune) bool { return r == ',' || r == ';' }) {
		key, value, _ := strings.Cut(part, "=")
		if key != name {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSuffix(value, "="), 10, 64)
		return err == nil && limit > -1 && used > limit
	}
	return false
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
