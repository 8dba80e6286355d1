package proc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// previewAttr puts the process into namespaces of its own. In a user namespace it keeps
// its user and group, and may mount.
func previewAttr(way PreviewWay) *syscall.SysProcAttr {
	attr := groupAttr()
	attr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWPID
	if way != PreviewUser {
		return attr
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	size := 1
	if os.Geteuid() == 0 {
		size = 1 << 16
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: size}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: size}}
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER}
	return attr
}

// previewHint says what usually forbids user namespaces; nil: nothing known does.
func previewHint() error {
	if data, err := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"); err == nil && strings.TrimSpace(string(data)) == "1" {
		return errors.New("AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1, as on Ubuntu)")
	}
	if data, err := os.ReadFile("/proc/sys/kernel/unprivileged_userns_clone"); err == nil && strings.TrimSpace(string(data)) != "1" {
		return errors.New("the kernel forbids user namespaces (kernel.unprivileged_userns_clone = 0)")
	}
	return nil
}

// previewMain is the process in the namespace.
func previewMain() int {
	runtime.LockOSThread() // Capabilities belong to a thread.
	control, orders, status := inherited()
	var s spec
	if err := orders.Decode(&s); err != nil {
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, control)
		os.Exit(1) // Whoever wanted the preview is gone, and all processes in it go, too.
	}()
	// The first process of a namespace dies of no signal that it has not asked for. The
	// command gets the signals of its group itself.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := s.show(); err != nil {
		_ = status.Encode(report{NoPreview: err.Error()})
		return 1
	}
	if len(s.Args) == 0 {
		_ = status.Encode(report{Result: &Result{}})
		return 0
	}
	if s.User {
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
	cmd := s.command()
	cmd.SysProcAttr = nil
	if err := cmd.Start(); err != nil {
		_ = status.Encode(report{Error: plain(err).Error()})
		return 1
	}
	_ = cmd.Wait()
	r := result(cmd.ProcessState)
	_ = status.Encode(report{Result: &r})
	return 0
}

// maxPreviewDirs bounds the directories of one preview: each is a few mounts.
const maxPreviewDirs = 256

type previewDir struct {
	path  string   // without links
	orig  *os.File // the directory itself, whatever covers it
	dev   uint64   // its device
	files []PreviewFile
	hide  []string // names
	bytes int64    // that are written
}

// show lets this namespace see the files.
func (s *spec) show() error {
	dirs, err := s.dirs()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if err := s.cover(d, mounts); err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
		if err := d.write(s.User); err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
	}
	// The command sees the processes of the preview alone. Where that is forbidden it sees
	// the host's.
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	return nil
}

// dirs finds the directories of the files, parents first.
func (s *spec) dirs() ([]*previewDir, error) {
	found := map[string]*previewDir{}
	in := func(path string) (*previewDir, string, error) {
		dir := filepath.Dir(path)
		actual, err := filepath.EvalSymlinks(dir)
		for errors.Is(err, fs.ErrNotExist) && dir != "/" { // It is made in the preview.
			dir = filepath.Dir(dir)
			actual, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return nil, "", err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return nil, "", err
		}
		if found[actual] == nil {
			found[actual] = &previewDir{path: actual}
		}
		return found[actual], rel, nil
	}
	for _, f := range s.Preview.Files {
		d, rel, err := in(filepath.Clean(f.Path))
		if err != nil {
			return nil, err
		}
		f.Path = rel
		d.files = append(d.files, f)
		d.bytes += int64(len(f.Data))
	}
	for _, path := range s.Preview.Hide {
		if d, rel, err := in(filepath.Clean(path)); err == nil {
			d.hide = append(d.hide, rel)
		}
	}
	if len(found) > maxPreviewDirs {
		return nil, fmt.Errorf("the files are in %d directories; a preview has at most %d", len(found), maxPreviewDirs)
	}
	var list []*previewDir
	for _, d := range found {
		var err error
		if d.orig, err = os.Open(d.path); err != nil {
			return nil, err
		}
		if d.dev, err = deviceOf(d.orig); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b *previewDir) int { return strings.Compare(a.path, b.path) })
	return list, nil
}

func deviceOf(f *os.File) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return uint64(st.Dev), err //nolint:unconvert // another type on some systems
}

// previewRoom is how much a command may write into one covered directory beside the files.
const previewRoom = 64 << 20

// cover covers a directory with an overlay, so that what is written there stays in this
// namespace. Without overlays it is covered with a copy.
func (s *spec) cover(d *previewDir, mounts []string) error {
	info, err := d.orig.Stat()
	if err != nil {
		return err
	}
	lower, err := cloneMount(d.orig)
	if err != nil {
		return fmt.Errorf("clone its mount: %w", err)
	}
	defer func() { _ = unix.Close(lower) }()
	size := fmt.Sprintf("mode=0700,size=%d,nr_inodes=%d", 2*d.bytes+previewRoom, 2*len(d.files)+maxCopied)
	if err := unix.Mount("tmpfs", d.path, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, size); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	// The working directory is the tmpfs: its names are written without the path, which may
	// hold what separates options.
	if err := os.Chdir(d.path); err != nil {
		return err
	}
	defer func() { _ = os.Chdir("/") }()
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
	}
	if err := likeDir("upper", info, s.User); err != nil {
		return err
	}
	options := "lowerdir=lower,upperdir=upper,workdir=work"
	if s.User {
		options += ",userxattr"
	}
	err = unix.MoveMount(lower, "", unix.AT_FDCWD, "lower", unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err == nil {
		err = unix.Mount("overlay", d.path, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options)
	}
	if err != nil {
		if copyErr := CopyDir(fmt.Sprintf("/proc/self/fd/%d", d.orig.Fd()), "upper", s.User); copyErr != nil {
			return fmt.Errorf("overlay: %w; copy instead: %w", err, copyErr)
		}
		return unix.Mount("upper", d.path, "", unix.MS_BIND, "")
	}
	return d.keepMounts(mounts)
}

// cloneMount makes a mount of a directory that stands nowhere yet. In a user namespace the
// mounts below it come along: they are locked there.
func cloneMount(dir *os.File) (int, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	fd, err := unix.OpenTree(int(dir.Fd()), "", flags)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.OpenTree(int(dir.Fd()), "", flags|unix.AT_RECURSIVE)
	}
	return fd, err
}

// keepMounts puts what is mounted below the directory on top of the overlay, which does
// not show it. A destination that is a mount of its own is covered.
func (d *previewDir) keepMounts(mounts []string) error {
	orig := fmt.Sprintf("/proc/self/fd/%d", d.orig.Fd())
	for _, m := range mounts {
		rel, below := strings.CutPrefix(m, strings.TrimSuffix(d.path, "/")+"/")
		if !below || slices.ContainsFunc(d.files, func(f PreviewFile) bool { return f.Path == rel }) {
			continue
		}
		err := unix.Mount(filepath.Join(orig, rel), m, "", unix.MS_BIND|unix.MS_REC, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep the mount %s: %w", m, err)
		}
	}
	return nil
}

// likeDir gives a directory the mode and the owner of another. In a user namespace the
// owner is the user, who may write there as the agent does.
func likeDir(name string, info fs.FileInfo, user bool) error {
	mode := info.Mode() & (fs.ModePerm | fs.ModeSetgid | fs.ModeSticky)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && !user {
		if err := os.Chown(name, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if user {
		mode |= 0o700
	}
	return os.Chmod(name, mode)
}

// write writes the files into the covered directory.
func (d *previewDir) write(user bool) error {
	top, err := os.Open(d.path)
	if err != nil {
		return err
	}
	dev, err := deviceOf(top)
	_ = top.Close()
	if err == nil && dev == d.dev {
		err = errors.New("the directory is not covered") // Nothing must be written there.
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range d.hide {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, f := range d.files {
		if err := f.Put(root, user); err != nil {
			return err
		}
	}
	return nil
}

// Put writes the file below root, where its path begins; for a user without its owner.
func (f *PreviewFile) Put(root *os.Root, user bool) error {
	if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f.Gone {
		return nil
	}
	if dir := filepath.Dir(f.Path); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	w, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(f.Data)
	if err == nil && (f.UID >= 0 || f.GID >= 0) {
		if err = w.Chown(f.UID, f.GID); user {
			err = nil // Only the agent's user is known in a user namespace.
		}
	}
	if err == nil {
		err = w.Chmod(f.Mode)
	}
	return errors.Join(err, w.Close())
}

// Bounds of a directory that is copied: its files, and their bytes.
const (
	maxCopied      = 20_000
	maxCopiedBytes = 256 << 20
)

// CopyDir copies what this process can read of a directory, for a user without owners. It
// bounds the files and their bytes: others may write there.
func CopyDir(from, to string, user bool) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = dst.Close() }()
	n, left := 0, int64(maxCopiedBytes)
	return fs.WalkDir(src.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if n++; n > maxCopied {
			return fmt.Errorf("it has more than %d files", maxCopied)
		}
		if errors.Is(err, fs.ErrPermission) { // The command cannot read it either.
			return fs.SkipDir
		}
		if err == nil && name != "." {
			var size int64
			size, err = copyEntry(src, dst, name, e, left, user)
			left -= size
		}
		if name == "." || !exchanged(err) {
			return err
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// exchanged reports whether a name is gone, or is another kind of file, than when its
// directory was listed: others may write there. A link out of the directory has an error of
// its own, which is no number.
func exchanged(err error) bool {
	if _, isPath := errors.AsType[*fs.PathError](err); !isPath {
		return errors.Is(err, fs.ErrExist) // A directory that changes may list a name twice.
	}
	errno, isNumber := errors.AsType[unix.Errno](err)
	return !isNumber || slices.Contains([]unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.EINVAL, unix.ELOOP, unix.ENXIO, unix.EEXIST}, errno)
}

// copyEntry copies one file, link or directory, and returns the bytes of a file. What the
// user cannot read is not there.
func copyEntry(src, dst *os.Root, name string, e fs.DirEntry, left int64, user bool) (int64, error) {
	switch {
	case e.IsDir():
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		return 0, dst.Mkdir(name, info.Mode().Perm()|0o700)
	case e.Type()&fs.ModeSymlink != 0:
		target, err := src.Readlink(name)
		if err != nil {
			return 0, err
		}
		return 0, dst.Symlink(target, name)
	case !e.Type().IsRegular():
		return 0, nil
	}
	file, err := src.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, err
	}
	if info.Size() > left {
		return 0, fmt.Errorf("it has more than %d bytes, with %s", maxCopiedBytes, name)
	}
	f := PreviewFile{Path: name, Mode: info.Mode().Perm(), UID: -1, GID: -1}
	if f.Data, err = io.ReadAll(io.LimitReader(file, left)); err != nil {
		return 0, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = int(st.Uid), int(st.Gid)
	}
	return int64(len(f.Data)), f.Put(dst, user)
}

// mountPoints lists what is mounted, parents first.
func mountPoints() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var list []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 {
			list = append(list, unescape.Replace(f[4]))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
