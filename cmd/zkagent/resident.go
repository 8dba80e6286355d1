package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settled is how long after its start an agent has done what only a start needs.
const settled = 15 * time.Second

// dropText gives back the pages of the program's code: a start touches most of it,
// an idle agent little. The kernel keeps them in its cache, and brings back those
// that are used again without reading the disk. Code is never written, so that
// nothing is lost; where the layout of the process cannot be read, nothing happens.
func dropText() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for start, end := range textRanges(maps, exe) {
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED)
	}
}

// textRanges yields where the code of a program lies, from /proc/self/maps.
func textRanges(maps []byte, exe string) func(func(start, end uintptr) bool) {
	return func(yield func(uintptr, uintptr) bool) {
		for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
			f := strings.Fields(lines.Text())
			if len(f) != 6 || f[1] != "r-xp" || f[5] != exe {
				continue
			}
			from, to, _ := strings.Cut(f[0], "-")
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			if err1 == nil && err2 == nil && start < end && !yield(uintptr(start), uintptr(end)) {
				return
			}
		}
	}
}
