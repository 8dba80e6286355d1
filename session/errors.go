package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/jute"
)

// Errors that operations return. Match them with errors.Is.
var (
	// Not applied, and will not be until something changes.
	ErrNoNode                  = errors.New("znode does not exist")
	ErrNodeExists              = errors.New("znode already exists")
	ErrBadVersion              = errors.New("version conflict")
	ErrNotEmpty                = errors.New("znode has children")
	ErrNoChildrenForEphemerals = errors.New("ephemeral znodes cannot have children")
	ErrThrottled               = errors.New("the server is overloaded and threw the request away")

	// Not applied, and permanent: another try fails until something changes elsewhere.
	ErrNoAuth        = errors.New("not permitted by the znode's ACL")
	ErrInvalidACL    = errors.New("ACL is not valid")
	ErrQuota         = errors.New("quota exceeded")
	ErrTooLarge      = errors.New("larger than the frame limit")
	ErrBadPath       = errors.New("path is not valid")
	ErrBadArguments  = errors.New("server refused the arguments")
	ErrUnimplemented = errors.New("server does not know the operation")
	ErrAuthFailed    = errors.New("authentication failed")
	ErrAuthRequired  = errors.New("server requires authentication (enforce.auth)")

	// Of [Session.Reconfig].
	ErrReconfigDisabled   = errors.New("the servers do not allow reconfiguration (reconfigEnabled)")
	ErrReconfigInProgress = errors.New("another reconfiguration is in progress")
	ErrNoQuorum           = errors.New("not enough servers of the new configuration are connected and up to date")

	// The session.
	ErrExpired    = errors.New("session expired")
	ErrClosed     = errors.New("session closed")
	ErrSuspended  = errors.New("session suspended")
	ErrNoSession  = errors.New("no session: the *session.Session or *session.Manager is nil; take one from session.Dial or session.New")
	ErrNoCallback = errors.New("the function to call is nil")
	ErrNoServer   = errors.New("no server reachable")
	ErrTLS        = errors.New("TLS with the server failed") // a certificate was refused, or could not be read

	// ErrReadOnly is the cause of a session's end when no server has a majority, or
	// when one has a majority again.
	ErrReadOnly = errors.New("no server has a majority: a read-only one is read meanwhile")

	// ErrUnknown means that a request was sent and its reply was lost. The request
	// may have been applied.
	ErrUnknown = errors.New("outcome unknown, the reply was lost")

	// ErrRolledBack marks the results of a multi that failed elsewhere.
	ErrRolledBack = errors.New("not applied, another operation of the multi failed")
)

var codeErrors = map[int32]error{
	jute.ErrCodeNoNode:                    ErrNoNode,
	jute.ErrCodeNodeExists:                ErrNodeExists,
	jute.ErrCodeBadVersion:                ErrBadVersion,
	jute.ErrCodeNotEmpty:                  ErrNotEmpty,
	jute.ErrCodeNoChildrenForEphemerals:   ErrNoChildrenForEphemerals,
	jute.ErrCodeNoAuth:                    ErrNoAuth,
	jute.ErrCodeInvalidACL:                ErrInvalidACL,
	jute.ErrCodeQuotaExceeded:             ErrQuota,
	jute.ErrCodeUnimplemented:             ErrUnimplemented,
	jute.ErrCodeAuthFailed:                ErrAuthFailed,
	jute.ErrCodeSessionClosedRequiresAuth: ErrAuthRequired,
	jute.ErrCodeBadArguments:              ErrBadArguments,
	jute.ErrCodeSessionExpired:            ErrExpired,
	jute.ErrCodeRuntimeInconsistency:      ErrRolledBack,
	jute.ErrCodeThrottled:                 ErrThrottled,
	jute.ErrCodeReconfigDisabled:          ErrReconfigDisabled,
	jute.ErrCodeReconfigInProgress:        ErrReconfigInProgress,
	jute.ErrCodeNewConfigNoQuorum:         ErrNoQuorum,
}

// CodeError is an error code of a server that this package has no name for.
type CodeError int32

func (e CodeError) Error() string { return fmt.Sprintf("server answered error %d", int32(e)) }

// Error is the error of a failed operation.
type Error struct {
	Op   string // as ZooKeeper names it: "getData", "create2", ...
	Path string // without the chroot
	Err  error  // why: matches the errors of this package
}

func (e *Error) Error() string {
	if e.Path == "" || errors.Is(e.Err, ErrBadPath) { // which quotes the path
		return e.Op + ": " + e.Err.Error()
	}
	return strings.TrimSuffix(e.Op, "2") + " " + e.Path + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func codeError(code int32) error {
	if code == 0 {
		return nil
	}
	if err, ok := codeErrors[code]; ok {
		return err
	}
	return CodeError(code)
}

// Action is the reaction of a caller to an error. See [ActionFor].
type Action int

// The actions.
const (
	// Decide: the znodes or the caller's own errors decide, as with ErrNoNode or
	// ErrBadVersion. Also of nil.
	Decide Action = iota
	// Retry on this session: the next try may succeed. After ErrUnknown, read first
	// whether the request was applied.
	Retry
	// NewSession: this one has ended, and its ephemerals with it.
	NewSession
	// GiveUp: the error comes again until an ACL, a quota, a setting or a server
	// changes.
	GiveUp
)

// String returns the action in words, for logs.
func (a Action) String() string {
	return map[Action]string{Decide: "decide", Retry: "retry", NewSession: "new session", GiveUp: "give up"}[a]
}

var actions = map[Action][]error{
	Retry:      {ErrUnknown, ErrNoServer, ErrThrottled, ErrSuspended, ErrReconfigInProgress, ErrNoQuorum},
	NewSession: {ErrExpired, ErrClosed, ErrReadOnly},
	GiveUp: {
		ErrNoAuth, ErrInvalidACL, ErrQuota, ErrTooLarge, ErrBadPath, ErrBadArguments, ErrNoSession, ErrNoCallback,
		ErrUnimplemented, ErrReconfigDisabled, ErrAuthFailed, ErrAuthRequired, ErrNoChildrenForEphemerals,
	},
}

// ActionFor returns the reaction to an error of this package, also when a recipe or
// an election wraps it. Of an error that joins several, the gravest decides.
func ActionFor(err error) Action {
	if errors.Is(err, ErrTLS) && !errors.Is(err, ErrNoServer) { // with all servers
		return GiveUp
	}
	for _, action := range []Action{GiveUp, NewSession, Retry} {
		if slices.ContainsFunc(actions[action], func(e error) bool { return errors.Is(err, e) }) {
			return action
		}
	}
	return Decide
}
