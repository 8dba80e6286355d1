package files

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// TxConfig describes one change of the files of a bundle.
type TxConfig struct {
	Bundle string // names the journal
	// StateDir is the directory of journals; empty: none is kept, and a
	// process that is killed may leave a part of the files swapped.
	StateDir string
	// Durable makes the journal survive a crash of the host also for one
	// renamed file. Set it where a check follows the swap: without the journal
	// the next process would not know that the check has not passed.
	Durable bool
	// DryRun writes nothing: the change can be looked at and discarded, not swapped.
	DryRun bool
	// NoBackup, when set, gets the error of a backup that cannot be kept. The change counts
	// all the same.
	NoBackup func(err error)
	FS       *FS // for tests
}

var (
	// ErrNotRestored says that not all of the old files are back. The journal and the
	// kept files stay, whatever is called then; [Recover] tries again.
	ErrNotRestored = errors.New("the old files are not all back")
	// ErrPending says that a previous change of the bundle could not be undone.
	// Recover comes first: another change would lose its kept files.
	ErrPending = errors.New("a previous change of the bundle is not finished")

	errDryRun = errors.New("a dry run cannot be swapped")
)

// Tx is a change of several files that happens wholly or not at all:
//
//	Begin -> StageAll, Remove ... -> Swap -> (check, reload) -> Commit
//	                                     \-> Restore -> (reload) -> Commit
//	                     \-> Discard
//
// It is used by one goroutine at a time.
type Tx struct {
	cfg    TxConfig
	staged []*Staged
	paths  map[string]bool       // of the staged files
	dirs   map[string]*directory // by path: one descriptor for all files in it
	phase  phase
	stuck  bool // a restore has failed
	// durable says that the journal survives a crash of the host.
	durable bool
}

// Begin starts a change. It does no I/O.
func Begin(cfg TxConfig) *Tx { return &Tx{cfg: cfg} }

// Content is one file of a bundle with its bytes.
type Content struct {
	File File
	Data []byte
}

// Files of one change that are written at the same time. Each must be durable before
// the next step, and a file system makes many durable in about the time of one. Few
// files are written one by one.
const (
	together  = 64
	fewStaged = 16
)

// StageAll stages files of the bundle, in order. What was staged before an error is a
// part of the change.
func (tx *Tx) StageAll(list []Content) ([]*Staged, error) {
	all := make([]*Staged, 0, len(list))
	for part := range slices.Chunk(list, together) {
		staged, errs := make([]*Staged, len(part)), make([]error, len(part))
		one := func(i int) {
			f := part[i].File
			f.FS = cmp.Or(f.FS, tx.cfg.FS)
			staged[i], errs[i] = stage(f, part[i].Data, tx.cfg.DryRun)
		}
		if len(list) <= fewStaged {
			for i := range part {
				if one(i); errs[i] != nil {
					break
				}
			}
		} else {
			var wg sync.WaitGroup
			for i := range part {
				wg.Go(func() { one(i) })
			}
			wg.Wait()
		}
		err := errors.Join(errs...)
		for i, s := range staged {
			switch {
			case s == nil:
			case tx.paths[s.dir.join(s.Base)]:
				s.discard()
				err = errors.Join(err, fmt.Errorf("stage %s: another template of the bundle has the same destination", part[i].File.Destination))
			default:
				tx.take(s)
				all = append(all, s)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// take makes a file a part of the change. Files of one directory share its
// descriptor: the writer of the keys of a for_each chooses how many there are.
func (tx *Tx) take(s *Staged) {
	if tx.paths == nil {
		tx.paths, tx.dirs = map[string]bool{}, map[string]*directory{}
	}
	tx.paths[s.dir.join(s.Base)] = true
	tx.staged = append(tx.staged, s)
	d := tx.dirs[s.Dir]
	if d == nil {
		tx.dirs[s.Dir] = s.dir
	} else if d.shared == s.dir.shared && os.SameFile(d.info, s.dir.info) {
		s.dir.close()
		d.more++
		s.dir, s.undo = d, d
	}
}

// Remove stages the removal of a file that is no longer wanted. A file whose
// digest is not the given one was written by something else: it stays, and
// Remove returns false. A file that is not there is no change.
func (tx *Tx) Remove(f File, digest string) (bool, error) {
	f.FS = cmp.Or(f.FS, tx.cfg.FS)
	s, err := openDestination(f)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // The directory is gone, too.
	}
	if slices.ContainsFunc([]error{ErrNotRegular, ErrTooLarge, errLink, errCircle}, func(e error) bool { return errors.Is(err, e) }) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove %s: %w", f.Destination, err)
	}
	if s.Old != "" && digest != "" && s.Old != digest {
		s.close()
		return false, nil
	}
	s.changed, s.File.Backup = s.Old != "", 0
	if err := s.readExtended(); err != nil {
		s.close()
		return false, fmt.Errorf("remove %s: %w", f.Destination, err)
	}
	tx.take(s)
	return true, nil
}

// Files returns what was staged, in order.
func (tx *Tx) Files() []*Staged { return slices.Clone(tx.staged) }

// Changed reports whether the swap changes any file.
func (tx *Tx) Changed() bool {
	return slices.ContainsFunc(tx.staged, (*Staged).Changed)
}

func (tx *Tx) changed() []*Staged {
	return slices.DeleteFunc(tx.Files(), func(s *Staged) bool { return !s.changed })
}

// Swap puts all files in place, or none: after an error the old ones are
// back, unless it is [ErrNotRestored]. The reload is pending from here on.
func (tx *Tx) Swap() error {
	list := tx.changed()
	if len(list) == 0 {
		return nil
	}
	if tx.cfg.DryRun {
		return errDryRun
	}
	if tx.phase == "" && Pending(tx.cfg.StateDir, tx.cfg.Bundle) {
		return ErrPending
	}
	alone := len(list) == 1 && tx.cfg.StateDir == "" && list[0].File.Backup <= 0
	for _, s := range list {
		if err := s.keep(tx.cfg, alone); err != nil {
			return err
		}
	}
	if err := tx.journal(phaseSwap); err != nil {
		return err
	}
	err := func() error {
		for _, s := range list {
			if err := s.swap(); err != nil {
				return err
			}
		}
		return settle(list)
	}()
	if err == nil {
		return nil
	}
	if back := tx.restoreAll(list); back != nil {
		return errors.Join(err, back)
	}
	return errors.Join(err, tx.forget())
}

// settle makes renames and removals durable, each directory once.
func settle(list []*Staged) error {
	done := map[string]bool{}
	for _, s := range list {
		if s.unsettled && !done[s.Dir] {
			if err := s.dir.sync(); err != nil {
				return fmt.Errorf("make %s durable: %w", s.File.Destination, err)
			}
			done[s.Dir] = true
		}
		s.unsettled = false
	}
	return nil
}

// restoreAll continues after an error: as many old files as possible.
func (tx *Tx) restoreAll(list []*Staged) error {
	var errs []error
	for _, s := range slices.Backward(list) {
		errs = append(errs, s.back())
	}
	err := errors.Join(append(errs, settle(list))...)
	if tx.stuck = err != nil; tx.stuck {
		return fmt.Errorf("%w: %w", ErrNotRestored, err)
	}
	return nil
}

// Restore puts the old files back after a check or reload that failed. The
// service may have read the new ones, so a reload is pending until Commit. After
// an error it can be called again.
func (tx *Tx) Restore() error {
	list := tx.changed()
	if len(list) == 0 {
		return nil
	}
	return errors.Join(tx.journal(phaseRestore), tx.restoreAll(list))
}

// Commit ends the change: no reload is pending, nothing can be restored. While a
// restore has failed it keeps everything and returns [ErrNotRestored].
//
// The journal goes before the kept files: while there is one, they are there.
func (tx *Tx) Commit() error {
	var errs []error
	for _, s := range tx.staged {
		if tx.stuck {
			break
		}
		err := s.backup()
		if err != nil && tx.cfg.NoBackup != nil {
			tx.cfg.NoBackup(err)
			err = nil
		}
		errs = append(errs, err)
	}
	err := tx.end(func(s *Staged) {
		errs = append(errs, s.drop())
		s.close()
	})
	return errors.Join(append(errs, err)...)
}

// Discard ends a change that was not swapped, or whose Swap failed. Where old
// files are not back it keeps everything and returns [ErrNotRestored].
func (tx *Tx) Discard() error { return tx.end((*Staged).discard) }

// end removes the journal and then calls each for the files, or keeps everything.
func (tx *Tx) end(each func(s *Staged)) error {
	err := ErrNotRestored
	if !tx.stuck {
		err = tx.forget()
	}
	if err != nil {
		each = (*Staged).close
	}
	for _, s := range tx.staged {
		each(s)
	}
	return err
}

// Keep ends the process's part and leaves the journal, so that the reload
// that is pending is known to the next process. Nothing can be restored by this
// one any more.
func (tx *Tx) Keep() {
	for _, s := range tx.staged {
		s.close()
	}
}

// Materialize writes every file of the bundle below dir under its own
// destination path, for a check before the swap. The files are private to the
// owner and not durable.
func (tx *Tx) Materialize(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write the files to check: %w", err)
	}
	defer func() { _ = root.Close() }()
	for _, s := range tx.staged {
		if s.New == "" {
			continue
		}
		name, err := filepath.Rel("/", filepath.Clean(s.File.Destination))
		if err == nil {
			err = root.MkdirAll(filepath.Dir(name), 0o700)
		}
		if err == nil {
			err = root.WriteFile(name, s.data, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the files to check: %w", err)
		}
	}
	return nil
}
