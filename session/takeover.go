package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
)

// SetNote saves b, a JSON value, in the state file at the next hand-over. The next process
// gets it from Session.Note, in addition to the session.
func (m *Manager) SetNote(b json.RawMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note = slices.Clone(b)
}

// Note returns the value that the previous process passed to SetNote. It is nil in a
// session that was not taken over.
func (s *Session) Note() json.RawMessage { return s.note }

// next returns the session to try: once that of the previous process, then a new one.
func (m *Manager) next(ctx context.Context, first bool) *Session {
	s := newSession(ctx, m.cfg)
	s.close = func() error {
		s.shutdown(false)
		return nil
	}
	if m.waiting != nil {
		if m.reading { // a session of a read-only server first, and after its end the parked one
			m.reading = false
			s.reader.Store(true)
			return s
		}
		s.resume(m.waiting)
		return s
	}
	if m.store == nil || !first {
		return s
	}
	v, err := m.store.load(m.cfg)
	if err != nil {
		s.log.Warn("cannot use the session of the previous process", "err", err)
		m.setError(err)
		return s
	}
	if v == nil {
		return s
	}
	s.resume(v)
	s.rebooted = v.Boot != m.store.host.boot
	return s
}

// resume makes s the session that was saved.
func (s *Session) resume(v *saved) {
	s.resumed, s.note, s.id, s.password = true, v.Note, v.ID, v.Password
	s.zxid.Store(v.Zxid)
	if v.Timeout > 0 && v.Timeout <= 24*time.Hour {
		s.timeout.Store(int64(v.Timeout))
	}
}

// saved returns what another session of this process, or of the next one, resumes.
func (s *Session) saved() saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return saved{
		Version: stateVersion, Ensemble: ensemble(s.cfg), Chroot: s.cfg.Chroot,
		ID: s.id, Password: slices.Clone(s.password), Timeout: s.Timeout(), Zxid: s.zxid.Load(), Agent: s.cfg.Identity,
	}
}

func (m *Manager) setError(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastErr = err
}

// connected is called once for every session, when it has connected. It reports whether
// the Manager may give the session out.
func (m *Manager) connected(s *Session) bool {
	if s.rebooted {
		s.log.Info("closed the session of the previous boot with its ephemeral znodes", "session", hexID(s.ID()))
		s.shutdown(false)
		return false
	}
	if s.State() == ReadOnly {
		return true
	}
	m.waiting = nil
	m.keep(s)
	return true
}

// keep writes the state file. If that fails the session still works, but no other process
// can take it over.
func (m *Manager) keep(s *Session) {
	if m.store == nil {
		return
	}
	if err := m.store.save(s, locked(&m.mu, &m.note)); err != nil {
		s.log.Error("cannot save the session for the next process", "err", err)
		m.setError(err)
	}
}

func (m *Manager) leave(s *Session) error {
	handOver := m.handOver.Load() && m.store != nil
	s.mu.Lock()
	live := s.id != 0 && s.endCause == nil && !s.rebooted && !s.reader.Load()
	s.mu.Unlock()
	if live && handOver {
		m.keep(s)
	}
	s.shutdown(handOver)
	if live && !handOver && m.store != nil { // what the file holds has been closed
		if err := os.Remove(filepath.Join(m.store.dir, stateName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget session: %w", err)
		}
	}
	return nil
}

// Two processes with one session take it from each other forever, because a server ends
// the old connection when the session connects again. A process recognizes that as
// follows. The server ends a connection soon after it began, although it has served it.
// Then the same server accepts the session again at once. Twice within T means that
// another process has the session. Each further connection begins with a probe, which
// shows that the server serves it even if the session sends no request.

// hardlyBegun is the life of a connection that another process takes at once.
const hardlyBegun = time.Second

// kicked notes that the server ended an open connection. It ignores an end that has
// another reason: the server hung up instead of answering, or after it answered that it
// does not know the operation. s.mu is held.
func (s *Session) kicked(w *wire, awaited bool, err error) {
	s.kick = ""
	served := w.useful.Load() || w.proved.Load()
	theft := hungUp(err) && served && !awaited && !w.refused.Load() || errors.Is(err, errMoved)
	if s.cfg.StateDir != "" && time.Since(s.since) < hardlyBegun && theft {
		s.kick = w.server
		s.hosts.again = w.server
	}
}

// stolen reports, when w has connected, whether another process has the session. s.mu is
// held.
func (s *Session) stolen(w *wire) bool {
	was := s.kick
	s.kick = ""
	if was == "" || was != w.server || s.hosts.tries != 1 {
		return false
	}
	now := time.Now()
	s.kicks = slices.DeleteFunc(s.kicks, func(t time.Time) bool { return now.Sub(t) > s.Timeout() })
	s.kicks = append(s.kicks, now)
	return len(s.kicks) >= 2
}

// A server that has lost its majority can still serve reads, if readonlymode.enabled is
// set. It accepts no session of the ensemble, only new sessions of its own, which end
// with their connection. So with Config.ReadOnly, a Manager that finds no other server
// parks its session and gives out a session of a read-only server. When a server has a
// majority again, the Manager ends that session and resumes the parked one, as after a
// restart of the process. The parked session still lives, because the new leader gives
// every session its whole timeout.
//
// Guaranteed: in a read-only session writes and Sync wait, as they do without a
// connection. It has no lease. The parked session is not lost by it. The Manager looks
// for a server with a majority all the time.
//
// Not guaranteed: that the data is current.

// seekPause is the pause between two looks for a server with, or without, a majority.
const seekPause = 2 * time.Second

// seekWriter asks the other servers until one has a majority. Then it ends the session
// of the read-only server.
func (h *hosts) seekWriter(w *wire) {
	for pace.Sleep(w.life, seekPause/2+rand.N(seekPause)) { //nolint:gosec // spreads load, no secret
		if server := h.find(func(mode string) bool { return mode != readOnlyMode }); server != "" {
			_ = h.s.leaveReader(server)
			return
		}
	}
}

// leaveReader ends a session of a read-only server.
func (s *Session) leaveReader(server string) error {
	err := fmt.Errorf("%w: %s has a majority again", ErrClosed, server)
	s.end(Closed, err)
	return err
}

// readOnlyMode is the name of the mode that a server without a majority reports.
const readOnlyMode = "read-only"

// find returns the first server whose mode fits. ZooKeeper answers srvr, whatever its
// list of allowed words says. A proxy may not: then only a server with a majority accepts
// a new session, and its mode is "".
func (h *hosts) find(fits func(mode string) bool) string {
	for _, server := range locked(&h.s.mu, &h.servers) { // never changed in place
		answer, _ := h.askWord(h.ctx, server)
		_, mode, found := strings.Cut(answer, "Mode: ")
		if mode, _, _ = strings.Cut(mode, "\n"); !found {
			found = strings.Contains(answer, "is not executed") && h.welcomes(server)
		}
		if found && fits(mode) {
			return server
		}
	}
	return ""
}

// lack returns a channel that is closed when the session has had no server for its
// timeout, and one of the servers is read-only. For a session that was parked before, a
// moment without a server is enough.
func (m *Manager) lack(ctx context.Context, s *Session, ended *sync.WaitGroup) <-chan struct{} {
	if !m.parks || s.reader.Load() {
		return nil
	}
	patience := s.Timeout()
	if m.waiting != nil {
		patience = seekPause
	}
	found := make(chan struct{})
	ended.Go(func() {
		for s.Sleep(ctx, seekPause) == nil {
			s.mu.Lock()
			away := s.cur == nil && s.id != 0 && time.Since(s.since) >= patience
			s.mu.Unlock()
			if away && s.hosts.find(func(mode string) bool { return mode == readOnlyMode }) != "" {
				close(found)
				return
			}
		}
	})
	return found
}

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
