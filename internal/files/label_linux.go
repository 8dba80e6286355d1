package files

import "syscall"

// selinux is the extended attribute with the security label of SELinux.
const selinux = "security.selinux"

// copyLabel gives a new file the security label of the one that it replaces.
// Where there are no labels, or they may not be set, there is nothing to do.
func copyLabel(from, to string) {
	var label [256]byte
	n, err := syscall.Getxattr(from, selinux, label[:])
	if err != nil || n == 0 {
		return
	}
	_ = syscall.Setxattr(to, selinux, label[:n], 0)
}
