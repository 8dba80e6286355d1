package memzk

import (
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// checkQuota refuses a change that goes over a hard limit of the nearest quota
// at or above path. What counts is the tree before the transaction, as on a
// real server. Usage is counted when it is needed; the znodes in which a real
// server keeps it are not updated.
func (p *preparer) checkQuota(path string, bytes, count int64) error {
	if !p.s.opts.EnforceQuota {
		return nil
	}
	t := p.s.primary.tree
	for prefix := path; prefix != "" && prefix != rootPath; prefix, _ = parentOf(prefix) {
		limits := t.get(quotaPath + prefix + "/zookeeper_limits")
		if limits == nil {
			continue
		}
		usedBytes, usedCount := t.usage(prefix)
		if over(limits.data, "byteHardLimit", usedBytes+bytes) || over(limits.data, "countHardLimit", usedCount+count) {
			return Error(jute.ErrCodeQuotaExceeded)
		}
		return nil
	}
	return nil
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
