package memzk

import (
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/internal/jute"
)

// Error is an error code of ZooKeeper, such as jute.ErrCodeNoNode.
type Error int32

// Error returns the code and its name.
func (e Error) Error() string {
	if name, ok := errorNames[int32(e)]; ok {
		return fmt.Sprintf("%s (%d)", name, int32(e))
	}
	return fmt.Sprintf("error %d", int32(e))
}

var errorNames = map[int32]string{
	jute.ErrCodeMarshallingError: "marshalling error", jute.ErrCodeUnimplemented: "unimplemented",
	jute.ErrCodeBadArguments: "bad arguments", jute.ErrCodeNoNode: "no node", jute.ErrCodeNoAuth: "no auth",
	jute.ErrCodeBadVersion: "bad version", jute.ErrCodeNoChildrenForEphemerals: "no children for ephemerals",
	jute.ErrCodeNodeExists: "node exists", jute.ErrCodeNotEmpty: "not empty", jute.ErrCodeSessionExpired: "session expired",
	jute.ErrCodeInvalidACL: "invalid ACL", jute.ErrCodeAuthFailed: "auth failed", jute.ErrCodeNoWatcher: "no watcher",
	jute.ErrCodeReconfigDisabled: "reconfig disabled", jute.ErrCodeQuotaExceeded: "quota exceeded",
}

// codeOf returns the code of an error that the data model gave; 0 for nil.
func codeOf(err error) int32 {
	if err == nil {
		return jute.ErrCodeOK
	}
	if e, ok := errors.AsType[Error](err); ok {
		return int32(e)
	}
	return jute.ErrCodeMarshallingError
}
