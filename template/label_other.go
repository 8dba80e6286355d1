//go:build !linux

package template

// copyLabel has nothing to copy where there is no SELinux.
func copyLabel(_, _ string) {}
