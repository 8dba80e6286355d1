package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// stateFiles are the files in the state directory that hold something, without the
// ledgers of hooks: a hook whose ledger is damaged waits, so that nothing is done
// twice.
func (x *truth) stateFiles() []string {
	x.t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(x.dir, "state"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.Contains(path, "/ledger/") {
			if info, failed := d.Info(); failed == nil && info.Size() > 0 {
				files = append(files, path)
			}
		}
		return err
	})
	if err != nil {
		x.t.Fatal(err)
	}
	return files
}

// TestState_Unreadable: an agent whose state files are damaged or of another version
// starts and gets everything in place. It logs each file that
// it cannot read and uses.
func TestState_Unreadable(t *testing.T) {
	t.Parallel()
	x := newTruth(t)
	contents := []string{`{"version":7,"since":5,"on":"yes","runs":{},"took":"1s","content":1}`, "{", `["list"]`}
	for _, content := range contents[:testhelp.Rounds(1, len(contents))] {
		x.maintain("on", "--reason", "disks")
		x.agree([]string{"maintenance"})
		x.stop()
		files := x.stateFiles()
		for _, path := range files {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		x.start()
		x.agree(nil)
		for _, path := range files {
			if strings.Contains(path, "/renders/") {
				continue // "history" leaves it out
			}
			if !strings.Contains(x.log(), filepath.Base(path)) {
				t.Errorf("with %s in %s the log does not name it", content, path)
			}
		}
		if t.Failed() {
			t.Fatal(x.log())
		}
	}
}
