// Package filestest simulates a disk that fails, for tests of package files.
//
// [Disk] watches a directory of the real file system through the seam
// files.FS. It refuses calls ([Disk.Fail]), ends the process between two calls
// ([Disk.KillAt]), and loses what was not made durable ([Disk.PowerOff]). Code
// under test reads the files as ever, and so do the programs that it runs.
//
// What survives a power loss:
//
//   - of a file, the bytes and the mode at its last fsync; those since then are
//     there, not there, or cut at any byte
//   - of a directory, the names at its last fsyncdir, and of the changes since
//     then the first few: a file system keeps their order
//   - each directory for itself: no order between two of them
//   - what was written past the seam, such as an edit by hand, whole
//
// Directories themselves are durable at once.
package filestest

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/zkagent/zkagent/internal/files"
)

// ErrKilled is the error of every call of a killed process.
var ErrKilled = errors.New("the process was killed")

// Disk is a directory on a disk that can lose its power. Its methods may be
// called from several goroutines.
type Disk struct {
	shadow string // a second name of every file seen, so that no inode is used twice

	mu     sync.Mutex
	inodes map[uint64]*inode
	dirs   map[string]*dir
	calls  int
	killAt int // 0: never
	killed bool
	fault  func(op, path string) error
}

// inode is a file with what would be found after a power loss.
type inode struct {
	name string // in shadow
	data []byte
	mode fs.FileMode
	// dirty: a call has changed it since its last fsync.
	dirty bool
}

// dir is a directory: the durable names, and those after each call since.
type dir struct {
	names []map[string]uint64
}

// New watches the directories below those that calls name. shadow is a
// directory of the same file system, outside of what the code under test uses.
func New(shadow string) *Disk {
	return &Disk{shadow: shadow, inodes: map[uint64]*inode{}, dirs: map[string]*dir{}}
}

// FS returns the seam of the running process.
func (d *Disk) FS() *files.FS { return &files.FS{Before: d.before, After: d.after} }

// KillAt kills the process ahead of the n-th call from now: this call and all
// later ones do nothing. 0: never.
func (d *Disk) KillAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killAt = 0
	if n > 0 {
		d.killAt = d.calls + n
	}
}

// Killed reports whether the process was killed.
func (d *Disk) Killed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.killed
}

// Calls returns how many calls there were.
func (d *Disk) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// Fail asks fn before each call; its error (ENOSPC, EROFS, EACCES) is that of
// the call. nil: no call fails.
func (d *Disk) Fail(fn func(op, path string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fn
}

// Restart starts the process again: calls work, and nothing is lost.
func (d *Disk) Restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed, d.killAt = false, 0
}

func (d *Disk) before(op, path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.killAt > 0 && d.calls >= d.killAt {
		d.killed = true
	}
	if d.killed {
		return ErrKilled
	}
	if d.fault != nil {
		if err := d.fault(op, path); err != nil {
			return err
		}
	}
	switch op {
	case "create", "link", "rename", "remove":
		d.watch(filepath.Dir(path))
	case "write", "truncate", "chmod", "chown", "setxattr":
		if f := d.inodes[d.see(path, false)]; f != nil && !f.dirty {
			d.durable(path) // What something else wrote before.
			f.dirty = true
		}
	}
	return nil
}

func (d *Disk) after(op, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch op {
	case "create":
		d.see(path, true)
		d.changed(filepath.Dir(path))
	case "link", "rename", "remove":
		d.changed(filepath.Dir(path))
	case "fsync":
		d.durable(path)
	case "fsyncdir":
		d.watch(path)
		d.dirs[path].names = []map[string]uint64{d.list(path)}
	}
}

// watch takes what is in a directory for durable, the first time.
func (d *Disk) watch(path string) {
	if d.dirs[path] == nil {
		d.dirs[path] = &dir{names: []map[string]uint64{d.list(path)}}
		return
	}
	d.adopt(path)
}

// adopt makes durable what something else did to a directory since the last
// call.
func (d *Disk) adopt(path string) {
	w := d.dirs[path]
	now, last := d.list(path), w.names[len(w.names)-1]
	for name := range last {
		if _, ok := now[name]; !ok {
			for _, names := range w.names {
				delete(names, name)
			}
		}
	}
	for name, n := range now {
		if last[name] != n {
			for _, names := range w.names {
				names[name] = n
			}
		}
	}
}

func (d *Disk) changed(path string) {
	if w := d.dirs[path]; w != nil {
		w.names = append(w.names, d.list(path))
	}
}

// list returns the files of a directory, and sees each.
func (d *Disk) list(path string) map[string]uint64 {
	names := map[string]uint64{}
	entries, err := os.ReadDir(path)
	if err != nil {
		return names
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			names[e.Name()] = d.see(filepath.Join(path, e.Name()), false)
		}
	}
	return names
}

// see makes a file known. One that was not made by a call is durable as it is.
func (d *Disk) see(path string, made bool) uint64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	n := info.Sys().(*syscall.Stat_t).Ino
	if d.inodes[n] != nil {
		return n
	}
	f := &inode{name: filepath.Join(d.shadow, strconv.FormatUint(n, 10)), mode: info.Mode(), dirty: made}
	d.inodes[n] = f
	must(os.Link(path, f.name))
	if !made {
		f.data, err = os.ReadFile(path) //nolint:gosec // in a test's own directory
		must(err)
	}
	return n
}

func (d *Disk) durable(path string) {
	f := d.inodes[d.see(path, false)]
	if f == nil {
		return
	}
	info, err := os.Stat(f.name)
	must(err)
	f.data, err = os.ReadFile(f.name)
	must(err)
	f.mode, f.dirty = info.Mode(), false
}

// Settle makes everything durable, as a disk does when it is left alone.
func (d *Disk) Settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, w := range d.dirs {
		w.names = []map[string]uint64{d.list(path)}
	}
	for _, f := range d.inodes {
		d.durable(f.name)
	}
}

// PowerOff cuts the power: what was not durable is lost, or not, as random
// decides. The disk works again afterwards.
func (d *Disk) PowerOff(random *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path := range d.dirs {
		d.adopt(path)
	}
	for _, n := range sorted(d.inodes) {
		d.inodes[n].powerOff(random)
	}
	for _, path := range sorted(d.dirs) {
		w := d.dirs[path]
		d.become(path, w.names[random.IntN(len(w.names))])
		w.names = []map[string]uint64{d.list(path)}
	}
	d.killed, d.killAt = false, 0
}

func (f *inode) powerOff(random *rand.Rand) {
	now, err := os.ReadFile(f.name)
	must(err)
	info, err := os.Stat(f.name)
	must(err)
	data, mode := now, info.Mode()
	if f.dirty {
		switch random.IntN(3) {
		case 0:
			data = f.data
		case 1:
			cut := random.IntN(len(now) + 1)
			data = append(append([]byte{}, now[:cut]...), f.data[min(cut, len(f.data)):]...)
		}
		if random.IntN(2) == 0 {
			mode = f.mode
		}
	}
	must(os.WriteFile(f.name, data, 0o600)) //nolint:gosec // in a test's own directory
	must(os.Chmod(f.name, mode))
	f.data, f.mode, f.dirty = data, mode, false
}

// become gives a directory these names.
func (d *Disk) become(path string, names map[string]uint64) {
	for name := range d.list(path) {
		must(os.Remove(filepath.Join(path, name)))
	}
	for _, name := range sorted(names) {
		must(os.Link(d.inodes[names[name]].name, filepath.Join(path, name)))
	}
}

// must panics when the real disk fails.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func sorted[K interface{ ~string | ~uint64 }, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
