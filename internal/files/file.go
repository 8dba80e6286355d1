package files

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The values of File.Symlink. By default the file that a link names is replaced,
// except in a directory that another user can write: there a link is refused.
// Links on the way to the directory are treated in the same way.
const (
	SymlinkFollow = "follow" // also in a directory that another user can write
	SymlinkRefuse = "refuse" // the destination itself must be no link
)

// maxLinks is how many links one path may lead through.
const maxLinks = 40

var (
	errCircle = errors.New("destination is a circle of symbolic links")
	errLink   = errors.New("a symbolic link")
)

// defaultMode is the mode of a file that did not exist and has none set.
const defaultMode = 0o644

// File describes one file that is kept up to date.
type File struct {
	Destination string      `json:",omitempty"` // absolute path
	Mode        fs.FileMode // 0: of the present file, else 0644
	Owner       string      // user name or number; empty: of the present file, else our own
	Group       string      // group name or number; empty likewise
	Backup      int         // number of old files that are kept as DESTINATION.bak, .bak.2, ...
	// InPlace writes into the present file instead of renaming over it, for
	// bind mounts. A reader may see a part of it, and a full disk may cut it.
	InPlace bool
	Symlink string // SymlinkFollow, SymlinkRefuse or empty
	MaxSize int64  // bytes of the present file that are read, at least [MaxSize]
	FS      *FS    `json:"-"` // for tests; empty: of the Tx
	// Known is what this process wrote there last. While the file is as it was
	// seen then (size, time, inode), it is not read. nil: it is read.
	Known *Written `json:"-"`
}

// Staged is the new content of one file, durable beside its destination. It
// is used by one goroutine at a time, and belongs to its Tx.
type Staged struct {
	file    File
	dir     *directory
	base    string // name in dir; of the target, when the destination is a link
	temp    string // name in dir; empty: nothing was written
	prev    string // name in undo of a link to the old file, or of a copy; empty: none
	undo    *directory
	data    []byte
	old     []byte
	sum     string // digest of data; empty until it is needed
	oldSum  string // likewise
	existed bool
	remove  bool // the file is to go
	attr    attributes
	oldAttr attributes
	made    fs.FileInfo // the new file before it was renamed; nil: there is none
	changed bool
	swapped bool
	closed  bool
}

// stage writes data beside the destination, with mode and owner set, and
// makes it durable. Where the present file already has these bytes, mode and
// owner, it writes nothing.
func stage(f File, data []byte, dry bool) (*Staged, error) {
	s, err := openDestination(f)
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", f.Destination, err)
	}
	s.data = data
	if err := s.prepare(dry); err != nil {
		s.discard()
		return nil, fmt.Errorf("stage %s: %w", f.Destination, err)
	}
	return s, nil
}

// openDestination finds the file that a destination means and reads its present state.
func openDestination(f File) (*Staged, error) {
	if !filepath.IsAbs(f.Destination) {
		return nil, errors.New("destination is not an absolute path")
	}
	dir, base, err := locate(f)
	if err != nil {
		return nil, err
	}
	s := &Staged{file: f, dir: dir, undo: dir, base: base}
	if err := s.readOld(); err != nil {
		dir.close()
		return nil, err
	}
	return s, nil
}

// locate opens the directory of the file that a destination means, and follows
// a destination that is a symbolic link, also to a target that does not exist.
func locate(f File) (*directory, string, error) {
	path := filepath.Clean(f.Destination)
	for range maxLinks {
		dir, err := openDirectory(f.FS, filepath.Dir(path), f.Symlink)
		if err != nil {
			return nil, "", err
		}
		base := filepath.Base(path)
		link, isLink, err := dir.readlink(base)
		if err == nil && !isLink {
			return dir, base, nil
		}
		dir.close()
		if err != nil {
			return nil, "", err
		}
		if f.Symlink == SymlinkRefuse {
			return nil, "", fmt.Errorf("destination is %w to %s (symlink = %q)", errLink, link, SymlinkRefuse)
		}
		if dir.shared && f.Symlink != SymlinkFollow {
			return nil, "", linkError(dir.join(base), link)
		}
		if !filepath.IsAbs(link) {
			link = dir.join(link)
		}
		path = filepath.Clean(link)
	}
	return nil, "", errCircle
}

func linkError(path, link string) error {
	return fmt.Errorf("%s is %w to %s in a directory that another user can write: "+
		"name the real directory, or set symlink = %q", path, errLink, link, SymlinkFollow)
}

// recognize takes the present bytes from the record of what was written, if the
// file is still that one.
func (s *Staged) recognize() bool {
	w := s.file.Known
	if w == nil || !w.held {
		return false
	}
	info, err := s.dir.lstat(s.base)
	if err != nil || !info.Mode().IsRegular() || !w.seen(info) {
		return false
	}
	s.old, s.oldSum = w.data, w.Digest
	s.existed, s.oldAttr = true, attributesOf(info)
	if w.changed == changeTime(statOf(info)) {
		s.oldAttr.extended = w.extended
	}
	return true
}

func (s *Staged) readOld() error {
	if s.recognize() {
		return nil
	}
	old, info, err := s.dir.read(s.base, s.file.maxSize())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, ErrNotRegular):
		return fmt.Errorf("destination is %w", err)
	case err != nil:
		return err
	}
	s.old = old
	s.existed, s.oldAttr = true, attributesOf(info)
	return nil
}

func attributesOf(info fs.FileInfo) attributes {
	st := statOf(info)
	return attributes{mode: permissions(info.Mode()), uid: int(st.Uid), gid: int(st.Gid)}
}

func permissions(m fs.FileMode) fs.FileMode {
	return m & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	}
	return "a device"
}

// prepare decides whether anything changes, and writes the new file.
func (s *Staged) prepare(dry bool) error {
	attr, err := s.wanted()
	if err != nil {
		return err
	}
	s.attr = attr
	s.changed = !s.existed || !bytes.Equal(s.old, s.data) || s.attr.differs(s.oldAttr)
	if !s.changed || dry {
		return nil
	}
	if err := s.readExtended(); err != nil {
		return err
	}
	s.attr.extended = s.oldAttr.extended
	if s.file.InPlace && s.existed {
		return nil
	}
	name := tempName(s.base, "new")
	s.temp = name
	s.made, err = s.dir.create(name, s.data, s.attr, false)
	if pe, ok := errors.AsType[*fs.PathError](err); ok && pe.Op == "create" {
		// The random name would make every try another error.
		return fmt.Errorf("write a new file into %s as user %d: %w%s", s.dir.path, os.Geteuid(), pe.Err, s.inPlaceHint())
	}
	return err
}

// inPlaceHint names in_place where the directory cannot be written and the
// file can.
func (s *Staged) inPlaceHint() string {
	f, _, err := s.dir.open(s.base, os.O_WRONLY)
	if err != nil {
		return ""
	}
	_ = f.Close()
	return "; the file itself can be written: in_place = true does that"
}

// readExtended reads the access list and the label of the present file, which
// the new one gets, too.
func (s *Staged) readExtended() error {
	if !s.existed || s.oldAttr.extended.known {
		return nil
	}
	f, _, err := s.dir.open(s.base, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	s.oldAttr.extended, err = readExtended(f)
	return err
}

// wanted are the attributes that the file shall have.
func (s *Staged) wanted() (attributes, error) {
	uid, gid, err := ids(s.file.Owner, s.file.Group)
	if err != nil {
		return attributes{}, err
	}
	a := attributes{mode: permissions(s.file.Mode), uid: uid, gid: gid, forced: uid >= 0 || gid >= 0}
	if s.existed && uid < 0 {
		a.uid = s.oldAttr.uid
	}
	if s.existed && gid < 0 {
		a.gid = s.oldAttr.gid
	}
	if a.mode == 0 {
		a.mode = defaultMode
		if s.existed {
			a.mode = s.oldAttr.mode
		}
	}
	return a, nil
}

func (a attributes) differs(old attributes) bool {
	return a.mode != old.mode || a.uid >= 0 && a.uid != old.uid || a.gid >= 0 && a.gid != old.gid
}

// tempName is a name in the directory of the file that no include pattern
// such as *.conf, and no *, matches.
func tempName(base, what string) string {
	return tempPrefix(base) + what + "-" + rand.Text()[:12]
}

func tempPrefix(base string) string {
	if len(base) > 180 { // A name has at most 255 bytes.
		base = base[:180]
	}
	return "." + base + tempMark
}

const tempMark = ".zkagent-"

// Digest returns the digest that identifies the content of a file.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Changed reports whether the swap changes anything.
func (s *Staged) Changed() bool { return s.changed }

// Destination returns the path as the settings name it.
func (s *Staged) Destination() string { return s.file.Destination }

// Path returns the path of the staged file, for a check: that of [Tx.Materialize] in dir for
// one that is written in place, and the destination when nothing changes.
func (s *Staged) Path(dir string) string {
	switch {
	case s.Beside() != "":
		return s.Beside()
	case s.changed && s.inPlace():
		return filepath.Join(dir, s.file.Destination)
	}
	return s.dir.join(s.base)
}

// Data returns the new bytes; they must not be changed.
func (s *Staged) Data() []byte { return s.data }

// Existed reports whether there was a file at the destination.
func (s *Staged) Existed() bool { return s.existed }

// Sweep removes what killed processes left of changes to these files: staged
// files and links to old ones. Call it after [Recover], while none of the
// files is staged. Files of other destinations in the same directories, which
// another program may be about to swap, stay; so does what a journal in the
// state directory names.
func Sweep(fsys *FS, stateDir string, destinations ...string) error {
	dirs := map[string]*directory{}
	bases := map[string]map[string]bool{} // by directory
	for _, d := range destinations {
		dir, base, err := locate(File{Destination: d, FS: fsys})
		if err != nil {
			continue // Staging it reports the error.
		}
		if dirs[dir.path] == nil {
			dirs[dir.path], bases[dir.path] = dir, map[string]bool{}
		} else {
			dir.close()
		}
		bases[dir.path][tempPrefix(base)] = true
	}
	needed := journaled(stateDir)
	var errs []error
	for path, dir := range dirs {
		errs = append(errs, dir.sweep(func(prefix string) bool { return bases[path][prefix] }, needed))
		dir.close()
	}
	return errors.Join(errs...)
}

// sweep removes files with our mark whose prefix is wanted, except needed ones.
func (d *directory) sweep(wanted func(prefix string) bool, needed map[string]bool) error {
	var left []string
	err := d.list(func(e fs.DirEntry) {
		at := strings.LastIndex(e.Name(), tempMark)
		if at >= 0 && wanted(e.Name()[:at+len(tempMark)]) && e.Type().IsRegular() && !needed[d.join(e.Name())] {
			left = append(left, e.Name())
		}
	})
	if err != nil {
		return fmt.Errorf("sweep %s: %w", d.path, err)
	}
	var errs []error
	for _, name := range left {
		if err := d.remove(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// After is a file as a change will leave it.
type After struct {
	Path     string // of the file itself, where the destination is a link
	Data     []byte
	Mode     fs.FileMode
	UID, GID int // -1: of this process
	Gone     bool
}

// After returns the file as the swap will leave it.
func (s *Staged) After() After {
	return After{Path: s.dir.join(s.base), Data: s.data, Mode: s.attr.mode, UID: s.attr.uid, GID: s.attr.gid, Gone: s.remove}
}

// Beside returns the path of the staged file in the directory of its destination; "" when
// there is none.
func (s *Staged) Beside() string {
	if s.temp == "" || s.swapped {
		return ""
	}
	return s.dir.join(s.temp)
}

// AfterMakeDirs returns a file as it will be in a directory that [MakeDirs] has yet to
// make; false: the directory is there.
func AfterMakeDirs(f File, data []byte) (After, bool, error) {
	if _, err := os.Stat(filepath.Dir(f.Destination)); !errors.Is(err, fs.ErrNotExist) {
		return After{}, false, nil
	}
	s := &Staged{file: f}
	attr, err := s.wanted()
	return After{Path: f.Destination, Data: data, Mode: attr.mode, UID: attr.uid, GID: attr.gid}, true, err
}
