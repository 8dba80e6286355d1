package proc

import (
	"os"

	"golang.org/x/sys/unix"
)

// newMemFile makes an anonymous file that nobody else can open by name.
func newMemFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
