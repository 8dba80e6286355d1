package files

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	entry

	dir, undo *directory // of Dir and PrevDir
	data      []byte
	old       []byte      // of the old file, where nothing else keeps them; nil otherwise
	made      fs.FileInfo // the new file before it was renamed; nil: there is none
	changed   bool
	swapped   bool
	unsettled bool // a rename or removal that is not durable yet
	closed    bool
}

// stage writes data beside the destination, with mode and owner set, and
// makes it durable. Where the present file already has these bytes, mode and
// owner, it writes nothing.
func stage(f File, data []byte, dry bool) (*Staged, error) {
	s, err := openDestination(f)
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", f.Destination, err)
	}
	s.data, s.New = data, Digest(data)
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
	s := &Staged{entry: entry{File: f, Dir: dir.path, Base: base}, dir: dir, undo: dir}
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
		link, err := look(dir.fs, "readlink", dir.join(base), func() (string, error) { return dir.root.Readlink(base) })
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) { // It is no link.
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

// readOld looks at the present file. It does not read one that is as this process has
// seen it last.
func (s *Staged) readOld() error {
	known := s.File.Known
	if known != nil {
		info, err := s.dir.lstat(s.Base)
		if err == nil && info.Mode().IsRegular() && known.seen(info) {
			s.Old, s.OldAttr = known.Digest, attributesOf(info)
			if known.changed == changeTime(statOf(info)) {
				s.OldAttr.extended = known.extended
			}
			return nil
		}
	}
	old, info, err := s.dir.digest(s.Base, s.File.maxSize())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, ErrNotRegular):
		return fmt.Errorf("destination is %w", err)
	case err != nil:
		return err
	}
	s.Old, s.OldAttr = old, attributesOf(info)
	return nil
}

func attributesOf(info fs.FileInfo) attributes {
	st := statOf(info)
	return attributes{Mode: permissions(info.Mode()), UID: int(st.Uid), GID: int(st.Gid)}
}

func permissions(m fs.FileMode) fs.FileMode {
	return m & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

// prepare decides whether anything changes, and writes the new file.
func (s *Staged) prepare(dry bool) error {
	var err error
	if s.Attr, err = s.wanted(); err != nil {
		return err
	}
	s.changed = s.Old != s.New || s.Attr.differs(s.OldAttr)
	if !s.changed || dry {
		return nil
	}
	if err := s.readExtended(); err != nil {
		return err
	}
	s.Attr.extended = s.OldAttr.extended
	if s.inPlace() {
		return nil
	}
	s.Temp = tempName(s.Base, "new")
	s.made, err = s.dir.create(s.Temp, s.data, s.Attr, false)
	if pe, ok := errors.AsType[*fs.PathError](err); ok && pe.Op == "create" {
		// The random name would make every try another error.
		return fmt.Errorf("write a new file into %s as user %d: %w%s", s.Dir, os.Geteuid(), pe.Err, s.inPlaceHint())
	}
	return err
}

// inPlaceHint names in_place where the directory cannot be written and the
// file can.
func (s *Staged) inPlaceHint() string {
	f, _, err := s.dir.open(s.Base, os.O_WRONLY)
	if err != nil {
		return ""
	}
	_ = f.Close()
	return "; the file itself can be written: in_place = true does that"
}

// readExtended reads the access list and the label of the present file, which
// the new one gets, too.
func (s *Staged) readExtended() error {
	if s.Old == "" || s.OldAttr.extended.known {
		return nil
	}
	f, _, err := s.dir.open(s.Base, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	s.OldAttr.extended, err = readExtended(f)
	return err
}

// wanted are the attributes that the file shall have.
func (s *Staged) wanted() (attributes, error) {
	uid, gid, err := ids(s.File.Owner, s.File.Group)
	a := attributes{Mode: permissions(s.File.Mode), UID: uid, GID: gid, forced: uid >= 0 || gid >= 0}
	old := attributes{Mode: defaultMode, UID: -1, GID: -1}
	if s.Old != "" {
		old = s.OldAttr
	}
	if uid < 0 {
		a.UID = old.UID
	}
	if gid < 0 {
		a.GID = old.GID
	}
	a.Mode = cmp.Or(a.Mode, old.Mode)
	return a, err
}

func (a attributes) differs(old attributes) bool {
	return a.Mode != old.Mode || a.UID >= 0 && a.UID != old.UID || a.GID >= 0 && a.GID != old.GID
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
	return digestOf(sum[:])
}

func digestOf(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

// Changed reports whether the swap changes anything.
func (s *Staged) Changed() bool { return s.changed }

// Destination returns the path as the settings name it.
func (s *Staged) Destination() string { return s.File.Destination }

// Path returns the path of the staged file, for a check: that of [Tx.Materialize] in dir for
// one that is written in place, and the destination when nothing changes.
func (s *Staged) Path(dir string) string {
	switch {
	case s.Beside() != "":
		return s.Beside()
	case s.changed && s.inPlace():
		return filepath.Join(dir, s.File.Destination)
	}
	return s.dir.join(s.Base)
}

// Existed reports whether there was a file at the destination.
func (s *Staged) Existed() bool { return s.Old != "" }

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
	return After{Path: s.dir.join(s.Base), Data: s.data, Mode: s.Attr.Mode, UID: s.Attr.UID, GID: s.Attr.GID, Gone: s.New == ""}
}

// Beside returns the path of the staged file in the directory of its destination; "" when
// there is none.
func (s *Staged) Beside() string {
	if s.Temp == "" || s.swapped {
		return ""
	}
	return s.dir.join(s.Temp)
}

// AfterMakeDirs returns a file as it will be in a directory that [MakeDirs] has yet to
// make; false: the directory is there.
func AfterMakeDirs(f File, data []byte) (After, bool, error) {
	if _, err := os.Stat(filepath.Dir(f.Destination)); !errors.Is(err, fs.ErrNotExist) {
		return After{}, false, nil
	}
	s := &Staged{entry: entry{File: f}}
	attr, err := s.wanted()
	return After{Path: f.Destination, Data: data, Mode: attr.Mode, UID: attr.UID, GID: attr.GID}, true, err
}

// Written is what a file was when it was put in place, to notice later that
// something else changed it. It can be kept as JSON.
type Written struct {
	Path   string      `json:"path"`
	Digest string      `json:"digest"`
	Mode   fs.FileMode `json:"mode"`
	UID    int         `json:"uid"`
	GID    int         `json:"gid"`
	Dirs   int         `json:"dirs,omitempty"` // directories above it that go with their last file

	// Of the file as it was last seen with that digest: while they stand,
	// the bytes need not be read again.
	Size    int64  `json:"size"`
	ModTime int64  `json:"mtime"` // nanoseconds since 1970
	Inode   uint64 `json:"inode"`

	// extended are its access list and label, while changed is the time of its last
	// change of any kind. Before Linux 6.13 a list that is set within a tick (4 ms)
	// after the swap is not seen.
	extended extended
	changed  int64
}

// Drift says how a file differs from what was written.
type Drift string

// The kinds of drift.
const (
	DriftNone    Drift = ""
	DriftMissing Drift = "missing"
	DriftContent Drift = "content"
	DriftMode    Drift = "mode"
	DriftOwner   Drift = "owner"
	DriftKind    Drift = "no regular file"
)

// Written returns the record of the file that was put in place. An edit by
// something else since then shows as drift.
func (s *Staged) Written() (Written, error) {
	w := Written{Path: s.File.Destination, Digest: s.New}
	info, err := s.dir.lstat(s.Base)
	ours := false
	if err == nil {
		ours, err = s.holds(info)
	}
	if err != nil {
		return w, fmt.Errorf("look at %s: %w", w.Path, err)
	}
	if ours {
		w.see(info)
		w.extended, w.changed = s.Attr.extended, changeTime(statOf(info))
	}
	now := attributesOf(info)
	w.Mode, w.UID, w.GID = now.Mode, now.UID, now.GID
	return w, nil
}

// holds reports whether the file in place has the bytes of the change. The file that
// was staged has them while its size, time and inode are the same.
func (s *Staged) holds(info fs.FileInfo) (bool, error) {
	if s.made != nil {
		var w Written
		if w.see(s.made); w.seen(info) {
			return true, nil
		}
	}
	now, _, err := s.dir.digest(s.Base, s.File.maxSize())
	return now == s.New, err
}

func (w *Written) see(info fs.FileInfo) {
	w.Size, w.ModTime, w.Inode = info.Size(), info.ModTime().UnixNano(), statOf(info).Ino
}

// seen reports whether the file is as it was last seen.
func (w *Written) seen(info fs.FileInfo) bool {
	return w.Size == info.Size() && w.ModTime == info.ModTime().UnixNano() && w.Inode == statOf(info).Ino
}

// Drift compares the file with the record. f says how the file is reached. The bytes are
// read only when time or inode differ from the last look, and the size does not.
func (w *Written) Drift(f File) (Drift, error) {
	f.Destination = w.Path
	d, err := w.drift(f)
	if err != nil {
		err = fmt.Errorf("look at %s: %w", w.Path, err)
	}
	return d, err
}

func (w *Written) drift(f File) (Drift, error) {
	dir, base, err := locate(f)
	if errors.Is(err, fs.ErrNotExist) {
		return DriftMissing, nil
	}
	if err != nil {
		return DriftNone, err
	}
	defer dir.close()
	info, err := dir.lstat(base)
	if err == nil && info.Mode().IsRegular() && !w.seen(info) {
		if w.Inode != 0 && w.Size != info.Size() {
			return DriftContent, nil
		}
		var sum string
		sum, info, err = dir.digest(base, f.maxSize())
		if errors.Is(err, ErrTooLarge) || err == nil && sum != w.Digest {
			return DriftContent, nil
		}
		if err == nil {
			w.see(info)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return DriftMissing, nil
	case errors.Is(err, ErrNotRegular), err == nil && !info.Mode().IsRegular():
		return DriftKind, nil
	case err != nil:
		return DriftNone, err
	}
	switch now := attributesOf(info); {
	case now.Mode != w.Mode:
		return DriftMode, nil
	case now.UID != w.UID || now.GID != w.GID:
		return DriftOwner, nil
	}
	return DriftNone, nil
}
