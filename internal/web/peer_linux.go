package web

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// peerOf says who is at the other end of a unix socket; empty: not known.
func peerOf(fd int) string {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("uid %d pid %d", cred.Uid, cred.Pid)
}
