package session

import (
	"fmt"
	"log/slog"
)

// libraryLog logs the client library's lines at debug level.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(format string, args ...any) {
	l.log.Debug("zookeeper client", "text", fmt.Sprintf(format, args...))
}

// hexID formats a session id as servers log it.
func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
