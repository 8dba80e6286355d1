package memzk

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// versions are the servers whose ways this package knows, the oldest first. Those
// from 3.8 on are compared with the real ones, the others by what clients use.
var versions = []string{"3.4.13", "3.5.9", "3.6.4", "3.7.2", "3.8.0", "3.9.3", "3.9.6"}

// DefaultVersion is the version of a Server without Options.Version.
const DefaultVersion = "3.8"

// Personality returns the version whose ways a server of that version has: the
// latest of a line, as of "3.9", or the latest that is not newer, as of "3.9.4".
func Personality(version string) (string, error) {
	numbers, err := versionNumbers(version)
	if err != nil {
		return "", err
	}
	for _, known := range slices.Backward(versions) {
		if have, _ := versionNumbers(known); slices.Compare(have[:min(len(have), len(numbers))], numbers) <= 0 {
			return known, nil
		}
	}
	return "", fmt.Errorf("version %q is not known; known are %s", version, strings.Join(versions, ", "))
}

func versionNumbers(version string) ([]int, error) {
	var numbers []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("version %q is not of the form 3.9 or 3.9.6", version)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// since reports whether the server is of that version or newer.
func (o *Options) since(version string) bool {
	return slices.Index(versions, o.Version) >= slices.Index(versions, version)
}

func (s *Server) version() string {
	return s.opts.Version + "-zkagent-memzk, built on 2022-02-25 08:49 UTC"
}
