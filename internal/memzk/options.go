package memzk

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults of Options.
const (
	DefaultTickTime          = 2 * time.Second
	DefaultContainerInterval = time.Minute
	DefaultMaxFrame          = 1<<20 - 1
)

// Options configures a Server. The zero value of a field means its default.
type Options struct {
	TickTime          time.Duration     // expiry is rounded up to it; DefaultTickTime
	MinTimeout        time.Duration     // smallest session timeout granted; 2 ticks
	MaxTimeout        time.Duration     // largest session timeout granted; 20 ticks
	ContainerInterval time.Duration     // pause between two reapings of containers and TTL znodes; DefaultContainerInterval
	MaxFrame          int               // largest packet from a client in bytes; DefaultMaxFrame
	SuperDigest       string            // "user:base64(sha1(user:password))" of a user whom no ACL stops; "" for none
	NoExtendedTypes   bool              // refuse TTL znodes, as a server does where they are not switched on
	Version           string            // whose ways the server has, see Personality; DefaultVersion
	SASLUsers         map[string]string // users of SASL DIGEST-MD5 and their passwords; nil: no SASL
	RequireSASL       bool              // refuse who has not done SASL, as sessionRequireClientSASLAuth does
	NoWords           bool              // answer no four-letter word, as where none is whitelisted
	Logger            *slog.Logger      // nil discards

	// Committed, when not nil, is called for every transaction: what it creates, sets
	// and deletes, in the order of the transactions, before a client can see
	// them. It must not call the server, nor change the data.
	Committed func(changes []Change)

	// Faults decides what goes wrong; nil: nothing.
	Faults Faults
}

// Change is what a transaction does to one znode.
type Change struct {
	Path string
	Data []byte // never nil, unless the znode is deleted
}

func (o Options) withDefaults() Options {
	o.TickTime = cmp.Or(max(o.TickTime, 0), DefaultTickTime)
	o.MinTimeout = cmp.Or(max(o.MinTimeout, 0), 2*o.TickTime)
	o.MaxTimeout = cmp.Or(max(o.MaxTimeout, 0), 20*o.TickTime)
	o.ContainerInterval = cmp.Or(max(o.ContainerInterval, 0), DefaultContainerInterval)
	o.MaxFrame = cmp.Or(max(o.MaxFrame, 0), DefaultMaxFrame)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Faults == nil {
		o.Faults = noFaults{}
	}
	var err error
	if o.Version, err = Personality(cmp.Or(o.Version, DefaultVersion)); err != nil {
		panic("memzk: " + err.Error())
	}
	return o
}

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
