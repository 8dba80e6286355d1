package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
)

// Written is what a file was when it was put in place, to notice later that
// something else changed it. It can be kept as JSON.
type Written struct {
	Path   string      `json:"path"`
	Digest string      `json:"digest"` // empty until it is asked for: see Sum
	Mode   fs.FileMode `json:"mode"`
	UID    int         `json:"uid"`
	GID    int         `json:"gid"`

	// Of the file as it was last seen with that digest: while they stand,
	// the bytes need not be read again.
	Size    int64  `json:"size"`
	ModTime int64  `json:"mtime"` // nanoseconds since 1970
	Inode   uint64 `json:"inode"`

	// held says that data are the bytes: of a file that this process wrote.
	held bool
	data []byte
	// extended are its access list and label, while changed is the time of its last
	// change of any kind. Before Linux 6.13 a list that is set within a tick (4 ms)
	// after the swap is not seen.
	extended extended
	changed  int64
}

// Sum returns the digest. Where the bytes are held it is made when it is first
// asked for, since most files change again before anybody does.
func (w *Written) Sum() string {
	if w.Digest == "" && w.held {
		w.Digest = Digest(w.data)
	}
	return w.Digest
}

// Holds reports whether data are the bytes that were written.
func (w *Written) Holds(data []byte) bool {
	if w.held {
		return bytes.Equal(w.data, data)
	}
	return w.Digest == Digest(data)
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
	w := Written{Path: s.file.Destination, Digest: s.sum, held: true, data: s.data}
	if s.dir == nil {
		return w, fmt.Errorf("look at %s: %w", s.file.Destination, fs.ErrNotExist)
	}
	info, err := s.dir.lstat(s.base)
	ours := false
	if err == nil {
		ours, err = s.holds(info)
	}
	if err != nil {
		return w, fmt.Errorf("look at %s: %w", s.file.Destination, err)
	}
	if ours {
		w.see(info)
		w.extended, w.changed = s.attr.extended, changeTime(statOf(info))
	}
	now := attributesOf(info)
	w.Mode, w.UID, w.GID = now.mode, now.uid, now.gid
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
	now, _, err := s.dir.read(s.base, s.file.maxSize())
	return bytes.Equal(now, s.data), err
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
		var data []byte
		data, info, err = dir.read(base, f.maxSize())
		if errors.Is(err, ErrTooLarge) || err == nil && !w.Holds(data) {
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
	case now.mode != w.Mode:
		return DriftMode, nil
	case now.uid != w.UID || now.gid != w.GID:
		return DriftOwner, nil
	}
	return DriftNone, nil
}
