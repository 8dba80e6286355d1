package apply

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/pace"
)

// workersOf lists the children of the process whose id the file holds; nil
// when there is no such file or process.
func workersOf(pidFile string) map[int]bool {
	if pidFile == "" {
		return nil
	}
	data, err := files.ReadNamed(pidFile, 1<<10)
	if err != nil {
		return nil
	}
	master := strings.TrimSpace(string(data))
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	found := map[int]bool{}
	for _, path := range stats {
		data, err := files.ReadNamed(path, 1<<10)
		if err != nil {
			continue
		}
		// pid (name) state ppid ...; the name may hold anything.
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && len(fields) > 1 && fields[1] == master {
			found[pid] = true
		}
	}
	return found
}

// renewed reports whether the workers are new: as many new ones as there were
// before, or some and none of the former. Former ones may stay for a while, to
// end their connections; one new child alone may be a helper of the master.
func renewed(before, now map[int]bool) bool {
	fresh := 0
	for pid := range now {
		if !before[pid] {
			fresh++
		}
	}
	return fresh > 0 && (fresh >= len(before) || fresh == len(now))
}

// verification waits for the proof that a reload took effect: its exit code is none.
type verification struct {
	cfg    VerifyConfig
	before map[int]bool // workers
	began  time.Time
	size   int64 // of the log
}

// verify notes what there is before a reload; nil: the exit code is believed.
func (c *VerifyConfig) verify() *verification {
	if c == nil {
		return nil
	}
	v := &verification{cfg: *c, before: workersOf(c.PIDFile), began: time.Now()}
	if info, err := os.Stat(c.Log); err == nil { //nolint:forbidigo // its size alone
		v.size = info.Size()
	}
	return v
}

// refusedError says that the program has refused its new configuration: another reload
// would end in the same way.
type refusedError struct{ lines string }

func (e *refusedError) Error() string { return "the program refuses it: " + e.lines }

// wait waits until the master has new workers, or has said why it will have none.
func (v *verification) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(max(v.cfg.Timeout, 0), DefaultVerifyTimeout), errors.New("no new worker"))
	defer cancel()
	for look := 0; ; look++ {
		if renewed(v.before, workersOf(v.cfg.PIDFile)) {
			return nil
		}
		// The journal is a program to run, so that it is asked less often.
		if lines := v.refusal(ctx, look%25 == 24); lines != "" {
			return &refusedError{lines}
		}
		if !pace.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("verify reload by %s: %w", v.cfg.PIDFile, context.Cause(ctx))
		}
	}
}

// refusals are lines by which a server says that it does not use its configuration: nginx
// writes [emerg], HAProxy [ALERT].
var refusals = regexp.MustCompile(`\[(emerg|ALERT)\]`)

// Bounds of what is read of a log, and shown.
const (
	maxLogRead  = 64 << 10
	maxLogShown = 3 // lines
)

// refusal returns the last lines of the log since the reload that say why it failed.
func (v *verification) refusal(ctx context.Context, journal bool) string {
	var text []byte
	unit, isJournal := strings.CutPrefix(v.cfg.Log, "journal:")
	switch {
	case v.cfg.Log == "" || isJournal && !journal:
		return ""
	case isJournal:
		since := fmt.Sprintf("--since=@%d", v.began.Unix())
		text, _ = exec.CommandContext(ctx, "journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=100", since, "--unit="+unit).Output() //nolint:gosec // the settings name the unit
	default:
		text = readSince(v.cfg.Log, v.size)
	}
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(text), "?")) {
		if refusals.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines[max(0, len(lines)-maxLogShown):], "; ")
}

// readSince reads the end of a log from an offset on. A log that is shorter was rotated,
// and is read from its beginning.
func readSince(path string, offset int64) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec,forbidigo // the settings name it; it is looked at before it is read
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if info.Size() < offset {
		offset = 0
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, max(offset, info.Size()-maxLogRead), maxLogRead))
	return text
}
