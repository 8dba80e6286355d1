package apply

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/zkagent/zkagent/internal/files"
)

// A reload command may end the agent: it kills the agent's process, or the machine's
// supervisor does it for what the new files cause, at once or in the pause of a rolling
// reload. The next process finds the change unfinished and runs the reload again. After
// maxLives processes that ended between the start of the reload of one content and the
// end of its change, that content is refused: the old files come back, and the content
// is not tried again. An end after that repeats no reload, so it is not counted. The
// rollouts of a fleet count in the same way.
//
// The file is written before a reload and after the change, without a flush: a killed process
// loses nothing of it, and a machine that crashes makes one more try. A process that
// stops in good order forgets it, so the next one tries again.
const maxLives = 3

// restoredContent stands for the files that came back after a refusal.
const restoredContent = "restored"

// lives counts the processes that ended between a bundle's reload and the end of its
// change. It is
// safe for concurrent use.
type lives struct {
	path string // empty: memory only
	fs   func() *files.FS

	mu   sync.Mutex // mu guards what follows.
	list map[string]life
}

// life is what is known of one bundle.
type life struct {
	Content string `json:"content"`           // that is reloaded
	Deaths  int    `json:"deaths,omitempty"`  // processes that ended meanwhile
	Running bool   `json:"running,omitempty"` // the reload has begun, and its change has not ended
	Refused string `json:"refused,omitempty"` // content that ended too many
}

// newLives reads what former processes have noted. A reload that was running then
// has ended its process.
func newLives(stateDir string, fs func() *files.FS, log *slog.Logger) *lives {
	l := &lives{fs: fs, list: map[string]life{}}
	if stateDir == "" {
		return l
	}
	l.path = filepath.Join(stateDir, "lives.json")
	if err := files.LoadJSON(l.path, &l.list); err != nil {
		log.Warn("cannot read which reloads have ended their agent", "err", err)
		l.list = nil
	}
	if l.list == nil {
		l.list = map[string]life{}
	}
	for name, n := range l.list {
		if n.Running {
			n.Deaths++
			n.Running = false
			l.list[name] = n
		}
	}
	return l
}

// begin notes that the reload of a content begins.
func (l *lives) begin(bundle, content string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.list[bundle]
	if n.Content != content {
		n = life{Content: content, Refused: n.Refused}
	}
	n.Running = true
	l.list[bundle] = n
	return l.save()
}

// end notes that the change has ended, well or not, and that this process lives.
func (l *lives) end(bundle string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.list[bundle]
	if !n.Running {
		return nil
	}
	if n.Refused == "" || n.Content != restoredContent {
		delete(l.list, bundle)
	} else {
		l.list[bundle] = life{Content: n.Content, Refused: n.Refused}
	}
	return l.save()
}

// content is what the bundle's newest reload was for.
func (l *lives) content(bundle string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[bundle].Content
}

// err says that a content is not to be reloaded; nil: it may be.
func (l *lives) err(bundle, content string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.list[bundle]; n.Content != content || n.Deaths < maxLives {
		return nil
	}
	return errLives
}

// refuse notes that the content of the newest reload is refused.
func (l *lives) refuse(bundle string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list[bundle] = life{Content: restoredContent, Refused: l.list[bundle].Content}
	return l.save()
}

// refused reports whether the content was refused.
func (l *lives) refused(bundle string, content func() string) bool {
	l.mu.Lock()
	refused := l.list[bundle].Refused
	l.mu.Unlock()
	return refused != "" && refused == content()
}

// forget forgets everything: the process stops in good order.
func (l *lives) forget() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return nil
	}
	clear(l.list)
	return l.save()
}

// save writes the file. l.mu is held.
func (l *lives) save() error {
	if l.path == "" {
		return nil
	}
	data, err := json.Marshal(l.list)
	if err != nil {
		return err
	}
	return l.fs().Note(l.path, data)
}

// noteLife tells that a note of a reload could not be written. The reload runs all
// the same: at worst it ends one process more.
func (e *Engine) noteLife(err error) {
	if err != nil {
		e.Log.Warn("note of a reload not written", "err", err)
	}
}

// lived notes that a change has ended after its reload.
func (t *applying) lived() { t.noteLife(t.lives.end(t.name)) }

// errLives is why a content is refused.
var errLives = fmt.Errorf("the agent ended %d times in the middle of this reload; "+
	"it is not run again for this content before the agent stops in good order", maxLives)

// content identifies what the reload makes the program read: the files, and the
// command. An apply that has not rendered ends the change of the reload before.
func (t *applying) content() string {
	if len(t.outputs) == 0 {
		return t.lives.content(t.name)
	}
	return files.Digest([]byte(t.job.key + "\n" + filesDigest(t.outputs)))
}
