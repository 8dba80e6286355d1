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

// settled is the time after which an agent has finished its start-up work.
const settled = 15 * time.Second

// dropText releases the memory pages of the program's code. A start touches most of
// the code, an idle agent little. The kernel keeps the pages in its cache and maps
// them again on use, without reading the disk. Code pages are never written, so no
// data is lost. If dropText cannot read the layout of the process, it does nothing.
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

// textRanges yields the address ranges of a program's code, from /proc/self/maps.
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
