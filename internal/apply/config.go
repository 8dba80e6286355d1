package apply

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// Values of CheckConfig.At, ReloadConfig.OnFailure and FileConfig.Drift.
const (
	atPreview     = "preview"
	atStaged      = "staged"
	atSwapped     = "swapped"
	onFailureKeep = "keep"
	driftReport   = "report"
)

// Defaults of checks and reloads that name no time.
const (
	DefaultCheckTimeout  = 30 * time.Second
	DefaultReloadTimeout = 30 * time.Second
	DefaultMinInterval   = time.Second
	DefaultVerifyTimeout = 10 * time.Second
)

// Config is a template block (a bundle of one) or a bundle block:
// files that change together or not at all.
type Config struct {
	Name      string
	Templates []FileConfig
	ForEach   *view.Source // nil: once
	WaitMin   time.Duration
	WaitMax   time.Duration
	Check     *CheckConfig
	Reload    *ReloadConfig
	Splay     time.Duration
	Position  string // file:line of the block
}

// FileConfig is one file of a bundle: how its template is rendered, and how the
// file is kept. Its own fields come before those of the same name in the two.
type FileConfig struct {
	template.Config // Dir is the directory of the settings file that holds the block
	files.File

	Name     string
	Source   string // path of the template file; empty when Contents is set
	Contents string
	// Destination evaluates the path of the file for one element (nil
	// without for_each).
	Destination     func(*template.Each) (string, error) `json:"-"`
	DestinationText string                               // as the settings spell it
	CreateDirs      bool                                 // make the directories of the destination
	AllowSubdirs    bool                                 // the key of an element may hold "/"
	Adopt           bool                                 // with for_each: take over files that something else wrote
	Drift           string                               // repair or report
	Parsed          *template.Template                   `json:"-"` // as the settings were read; nil: it is parsed at its use
	Position        string                               // file:line of the block
}

// Template is the file as package template wants it, with the given text.
// Every door takes it from here.
func (c *FileConfig) Template(text string) template.Config {
	t := c.Config
	t.Name, t.Source = c.Name, text
	if c.Source != "" {
		t.Name, t.Dir = c.Source, filepath.Dir(c.Source)
	}
	return t
}

// Text is the text of the template.
func (c *FileConfig) Text() (string, error) {
	if c.Source == "" {
		return c.Contents, nil
	}
	data, err := files.ReadNamed(c.Source, files.MaxSize)
	if err != nil {
		return "", fmt.Errorf("read template: %w", err)
	}
	return string(data), nil
}

// Parse returns the parsed template.
func (c *FileConfig) Parse() (*template.Template, error) {
	if c.Parsed != nil {
		return c.Parsed, nil
	}
	text, err := c.Text()
	if err != nil {
		return nil, err
	}
	return template.Parse(c.Template(text))
}

// at is the file at a destination.
func (c *FileConfig) at(destination string) files.File {
	f := c.File
	f.Destination, f.MaxSize = destination, c.MaxOutput
	return f
}

// Present reads the present file at a destination, as [files.Read] does.
func (c *FileConfig) Present(destination string) ([]byte, fs.FileInfo, error) {
	return files.Read(c.at(destination))
}

// Path is where the file of one element is written; nil without for_each. The
// key of an element comes from ZooKeeper: it must not lead the file elsewhere.
func (c *FileConfig) Path(e *template.Each) (string, error) {
	dest, err := c.Destination(e)
	if err != nil {
		return "", fmt.Errorf("destination: %w", err)
	}
	if !filepath.IsAbs(dest) || filepath.Clean(dest) != dest {
		return "", fmt.Errorf("destination %q is not a clean absolute path", dest)
	}
	return dest, c.checkKey(e)
}

// maxKey is how many bytes of a path a key may be: a path has 4096.
const maxKey = 1024

// checkKey returns why the key of an element cannot be part of a file name; nil: it can.
func (c *FileConfig) checkKey(e *template.Each) error {
	if e == nil {
		return nil
	}
	if len(e.Key) > maxKey {
		return fmt.Errorf("element %+.128q cannot be part of a file name: it has more than %d bytes", e.Key, maxKey)
	}
	for part := range strings.SplitSeq(e.Key, "/") {
		if !view.IsName(part) || part[0] == '.' {
			return fmt.Errorf("element %+.128q cannot be part of a file name: it is empty, begins with a dot or a -, "+
				"or has other characters than letters, digits and ._:-", e.Key)
		}
	}
	if !c.AllowSubdirs && strings.Contains(e.Key, "/") {
		return fmt.Errorf("element %+.128q cannot be part of a file name: it holds a slash; allow_subdirs = true lets keys name directories", e.Key)
	}
	return nil
}

// CheckConfig is a check block.
type CheckConfig struct {
	Command command.Command
	At      string // preview, staged or swapped; empty: staged
	Timeout time.Duration
}

// ReloadConfig is a reload block.
type ReloadConfig struct {
	Command     command.Command
	Timeout     time.Duration
	MinInterval time.Duration
	Retry       int
	OnFailure   string // restore or keep
	Leader      string // name of the election whose leader runs it; empty: every host
	Rolling     *RollingConfig
	Verify      *VerifyConfig // nil: the exit code is believed
}

// VerifyConfig is a verify block: the proof that a reload took effect.
type VerifyConfig struct {
	PIDFile string // of the master whose workers must be new
	// Log is where the program says why it refuses a configuration: a file, or the journal
	// of a unit as "journal:UNIT"; empty: only the timeout says that a reload failed.
	Log     string
	Timeout time.Duration
}

// RollingConfig limits how many hosts of the fleet reload at the same time.
type RollingConfig struct {
	Permits   string // a number, or a share such as "10%"
	Pause     time.Duration
	PostCheck command.Command
}
