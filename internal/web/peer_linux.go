package web

import "golang.org/x/sys/unix"

func peerOf(fd int) (peerID, bool) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peerID{}, false
	}
	return peerID{cred.Uid, cred.Pid}, true
}
