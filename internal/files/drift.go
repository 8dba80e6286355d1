package files

import (
	"errors"
	"fmt"
	"io/fs"
)

// Written is what a file was when it was put in place, to notice later that
// something else changed it. It can be kept as JSON.
type Written struct {
	Path   string      `json:"path"`
	Digest string      `json:"digest"`
	Mode   fs.FileMode `json:"mode"`
	UID    int         `json:"uid"`
	GID    int         `json:"gid"`

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
