package memzk

import (
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/internal/jute"
)

// Error is an error code of ZooKeeper, such as jute.ErrCodeNoNode.
type Error int32

// Error returns the code.
func (e Error) Error() string { return fmt.Sprintf("ZooKeeper error %d", int32(e)) }

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
