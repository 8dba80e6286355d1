package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/files"
)

// Handoff: one session through many processes.
//
//	<state dir>/session        JSON, 0600: what the next process needs to take over
//	<state dir>/session.lock   flock: one process at a time
//
// The Manager replaces the file atomically when a session has connected for the first
// time, before it gives the session out, and when it hands the session over. The file
// does not list what the session owns: the server knows that. The server also decides
// whether the session still lives. The Manager does not try to take a session over from
// another machine (a cloned image must not share a session) or for another ensemble or
// chroot, nor from a file that other users may read or that does not parse. After a
// reboot it takes the session over only to close it, with all that it owns.

// ErrStateBusy means that another process uses the state directory.
var ErrStateBusy = errors.New("state directory is in use by another process")

const (
	stateName    = "session"
	stateLock    = "session.lock"
	stateVersion = 1
)

// saved is the content of the state file.
type saved struct {
	Version  int             `json:"version"`
	Ensemble []string        `json:"ensemble"` // sorted
	Chroot   string          `json:"chroot"`
	ID       int64           `json:"session_id,string"`
	Password []byte          `json:"password"`
	Timeout  time.Duration   `json:"timeout_ns"`
	Zxid     int64           `json:"last_zxid,string"`
	Machine  string          `json:"machine_id"`
	Boot     string          `json:"boot_id"`
	Agent    string          `json:"agent,omitempty"`
	Time     time.Time       `json:"time"`
	Note     json.RawMessage `json:"note,omitempty"`
}

// host identifies the machine and its current boot.
type host struct{ machine, boot string }

func thisHost() host {
	return host{machine: firstLine("/etc/machine-id"), boot: firstLine("/proc/sys/kernel/random/boot_id")}
}

// firstLine returns the first line of a file, or the host's name when the file is
// missing or empty: containers often have no machine id.
func firstLine(path string) string {
	if b, err := os.ReadFile(path); err == nil { //nolint:gosec // two fixed paths
		if line, _, _ := strings.Cut(string(b), "\n"); line != "" {
			return line
		}
	}
	name, _ := os.Hostname()
	return name
}

// stateStore is the state directory, locked.
type stateStore struct {
	dir  string
	host host
	lock *os.File
}

func openState(dir string, h host) (*stateStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, stateLock), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600) //nolint:gosec // the state directory is a setting
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dir, ErrStateBusy)
		}
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	return &stateStore{dir: dir, host: h, lock: f}, nil
}

// load returns the session of the previous process. It returns nil when there is no such
// session, and an error when the session cannot be taken over.
func (st *stateStore) load(cfg Config) (*saved, error) {
	path := filepath.Join(st.dir, stateName)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("session file: %w", err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("session file %s has mode %s, want 0600: it holds a credential, so it is not used", path, info.Mode())
	}
	var v saved
	if err := files.LoadJSON(path, &v); err != nil {
		return nil, fmt.Errorf("session file: %w", err)
	}
	return &v, v.usable(cfg, st.host)
}

// usable returns why this process must not take v over, or nil if it may.
func (v *saved) usable(cfg Config, h host) error {
	switch {
	case v.Version != stateVersion:
		return fmt.Errorf("session file has version %d, want %d", v.Version, stateVersion)
	case v.ID == 0 || len(v.Password) == 0 || len(v.Password) > 64 || v.Zxid < 0:
		return errors.New("session file names no session")
	case v.Machine != h.machine:
		return errors.New("session file is of another machine")
	case !slices.Equal(v.Ensemble, ensemble(cfg)):
		return fmt.Errorf("session file is of another ensemble, %s", strings.Join(v.Ensemble, ","))
	case v.Chroot != cfg.Chroot:
		return fmt.Errorf("session file is of another chroot, %q", v.Chroot)
	}
	return nil
}

func ensemble(cfg Config) []string {
	return slices.Compact(slices.Sorted(slices.Values(cfg.Servers)))
}

func (st *stateStore) save(s *Session, note []byte) error {
	v := s.saved()
	v.Machine, v.Boot, v.Time, v.Note = st.host.machine, st.host.boot, time.Now().UTC(), note
	b, err := json.MarshalIndent(v, "", "  ") //nolint:gosec // whoever takes the session over needs its password; the file is 0600
	if err != nil {
		return fmt.Errorf("session file: %w", err)
	}
	if err := files.Save(filepath.Join(st.dir, stateName), append(b, '\n')); err != nil {
		return fmt.Errorf("session file: %w", err)
	}
	return nil
}
