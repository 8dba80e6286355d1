package main

import (
	"os"
	"testing"
)

func TestTextRanges(t *testing.T) {
	const maps = `00400000-00ec0000 r-xp 00000000 fe:00 17 /usr/bin/zkagent
00ec0000-019df000 r--p 00ac0000 fe:00 17 /usr/bin/zkagent
019df000-01a89000 rw-p 015df000 fe:00 17 /usr/bin/zkagent
7fc05c3e0000-7fc05c700000 r-xp 00000000 00:00 0
7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]
garbage
zz-yy r-xp 00000000 fe:00 17 /usr/bin/zkagent
`
	var got [][2]uintptr
	for start, end := range textRanges([]byte(maps), "/usr/bin/zkagent") {
		got = append(got, [2]uintptr{start, end})
	}
	if len(got) != 1 || got[0] != [2]uintptr{0x400000, 0xec0000} {
		t.Errorf("got %x", got)
	}
}

// TestDropText: the program goes on after its code was given back.
func TestDropText(t *testing.T) {
	for range 3 {
		dropText()
		if _, err := os.ReadFile("/proc/self/maps"); err != nil {
			t.Fatal(err)
		}
	}
}
