package pace

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Share is a number of hosts, or a share of those that there are.
type Share struct {
	number  float64
	percent bool
}

// ParseShare parses a number of hosts ("3") or a share of them ("10%").
func ParseShare(text string) (Share, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	most := 100_000.0
	if percent {
		most = 100
	}
	if err != nil || math.IsNaN(n) || n <= 0 || n > most || !percent && n != math.Trunc(n) {
		return Share{}, fmt.Errorf("%q is neither a number of hosts (\"3\") nor a share of them (\"10%%\")", text)
	}
	return Share{n, percent}, nil
}

// Of returns the number of hosts when there are total: at least 1, rounded down.
func (s Share) Of(total int) int {
	if s.percent {
		return max(1, int(float64(total)*s.number/100))
	}
	return int(s.number)
}
