// Package template renders text from a [view.View].
//
// Rendering: [Parse] reads a text/template with the function set that
// [Functions] lists; [Template.Uses] finds in the parse tree which config
// keys, groups and elections it depends on, [Template.Stale] whether a new
// view can change its text, and [Template.Render] executes it within limits of
// time, size and depth.
//
// Guarantees: a template cannot reach ZooKeeper, the network, other programs
// or, unless allowed, the environment and the file system; the same view
// gives the same bytes (but for timestamp and ago); an error names template,
// line, column and the path of the value, and never the value.
//
// Not here: files (internal/files), when to render, checks and reloads (package agent).
package template

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"text/template/parse"
	"time"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/view"
)

// Limits that hold where the Config names none.
const (
	DefaultMaxOutput = 16 << 20         // bytes of one rendered file
	DefaultTimeout   = 10 * time.Second // execution of one template
	MaxDepth         = 200              // templates that call each other
	maxSteps         = 1 << 20          // elements of one loop, list or tree of values
)

// The names that the allow setting of a template may have.
const (
	AllowEnv        = "env"
	AllowFile       = "file"
	AllowCredential = "credential"
)

// Config describes one template. Name and Source are needed; the zero value
// of every other field means its default.
type Config struct {
	Name   string   // how errors name the template, such as its file name
	Source string   // text of the template
	Dir    string   // directory below which the function file may read
	Allow  []string // AllowEnv, AllowFile, AllowCredential
	// MissingKeyOK makes a missing map entry "<no value>"; without it such an entry is
	// an error. A missing key of a config is always an error of the class ErrNoKey,
	// and so is a config, group or election that does not exist one of the class
	// ErrUnknown.
	MissingKeyOK bool
	// ByNode orders members by node and id instead of by address.
	ByNode    bool
	MaxOutput int64         // bytes; 0: DefaultMaxOutput
	Timeout   time.Duration // 0: DefaultTimeout
	// Syntax names the format of the rendered bytes: json, yaml, toml,
	// xml, ini, a name in Syntaxes, or none (also "").
	Syntax string
	// Syntaxes are further parsers by name.
	Syntaxes map[string]func([]byte) error `json:"-"`
	// Left and Right are the delimiters of actions; default "{{" and "}}".
	Left, Right string
	// Debug receives the output of spew_dump and spew_printf; nil: discard.
	Debug io.Writer `json:"-"`
	// Now is the time of timestamp; nil: the present time.
	Now func() time.Time `json:"-"`
	// Sockaddr evaluates an expression of sockaddr; nil: on the addresses of this
	// host.
	Sockaddr func(expression string) (string, error) `json:"-"`
	// LookupEnv reads the environment for env; nil: the process's environment.
	LookupEnv func(name string) (string, bool) `json:"-"`
	// Coverage notes which lines and branches are rendered. Optional.
	Coverage *Coverage `json:"-"`
}

// Template is a parsed template. It is safe for concurrent use.
type Template struct {
	cfg      Config
	trees    map[string]*parse.Tree
	places   []place       // what guards and label checks refer to by index
	loops    []place       // where the ranges are
	covered  []func()      // reports to Coverage, by index
	labels   []string      // that the text names as fields: .Labels.zone
	direct   []directBody  // loops that are printed directly
	chunks   []chunkLoop   // loops that are executed by chunks of keys
	bodies   []*parse.Tree // of the chunks
	names    []string
	uses     Deps
	elses    elses
	warnings []Warning
	check    func([]byte) error // syntax; nil: none

	memo      atomic.Pointer[memo] // of the last execution; nil: nothing to keep
	size      atomic.Int64         // bytes of the last output
	grace     time.Duration        // how long an execution may take to notice its end
	abandoned atomic.Int32         // executions that ignored their limit and still run
	mu        sync.Mutex           // mu guards free
	free      []*state             // idle ones
}

// graceful is how long an execution that was asked to end may take: it
// notices at its next turn or write.
const graceful = 2 * time.Second

// maxAbandoned bounds the executions of one template that were given up
// while they were inside one long function call.
const maxAbandoned = 1

type place struct{ line, column int }

// Parse reads a template. The errors of unknown functions come all at once,
// joined, each an *Error with its line and column.
func Parse(cfg Config) (*Template, error) {
	cfg.MaxOutput, cfg.Timeout = cmp.Or(cfg.MaxOutput, DefaultMaxOutput), cmp.Or(cfg.Timeout, DefaultTimeout)
	check, err := syntaxCheck(cfg.Syntax, cfg.Syntaxes)
	if err != nil {
		return nil, &Error{Template: cfg.Name, Err: err}
	}
	trees, err := parseTrees(cfg)
	if err != nil {
		return nil, err
	}
	t := &Template{cfg: cfg, trees: trees, check: check, grace: graceful}
	if t.names, err = t.checkNames(); err != nil {
		return nil, err
	}
	if err := t.checkCalls(); err != nil {
		return nil, err
	}
	t.uses, t.elses = findUses(t), findElses(t)
	t.otherLanguage()
	t.instrument()
	st, err := t.newState()
	if err != nil {
		return nil, err
	}
	t.free = append(t.free, st)
	return t, nil
}

// Name returns the name that errors use.
func (t *Template) Name() string { return t.cfg.Name }

// Uses returns the data that the template depends on, as far as its text shows.
func (t *Template) Uses() Deps { return t.uses }

// Warning is a doubtful place in a template.
type Warning struct {
	Template     string
	Line, Column int
	Text         string
}

// Warnings returns the warnings of validate to the author.
func (t *Template) Warnings() []Warning { return slices.Clone(t.warnings) }

// Each is the element of a for_each that a template is rendered for. In the
// template it is .Key and .Value.
type Each struct {
	Key string
	// Value is []view.Member for groups, view.Member for a group and the
	// text of the key for a config.
	Value any
	// OnEmpty is the reaction when Value is a list without members: keep, render
	// or fail; empty means that the template says it.
	OnEmpty string
}

// Elements returns the elements of a source in order of their keys: the
// groups of a set, the members of a group by id, or the keys of a config.
func Elements(v *view.View, source view.Source) ([]Each, error) {
	switch u := v.Get(source).(type) {
	case *view.Groups:
		list := lists.Map(u.Groups, func(g *view.Group) Each { return Each{Key: g.Name, Value: serving(g.Members), OnEmpty: g.OnEmpty} })
		return list, nil
	case *view.Group:
		// Of several members with one id it takes the latest: a member that moves to another
		// address may be registered twice. That there is none is an error unless on_empty is
		// render, so that no file is removed for it.
		members := serving(u.Members)
		if len(members) == 0 {
			if err := emptyGroup(u.Name, u.OnEmpty, false); err != nil {
				return nil, err
			}
		}
		var list []Each
		at := map[string]int{}
		for _, m := range members {
			e := Each{Key: cmp.Or(m.ID, m.Node), Value: m}
			i, double := at[e.Key]
			switch {
			case !double:
				at[e.Key] = len(list)
				list = append(list, e)
			case list[i].Value.(view.Member).Czxid < m.Czxid: //nolint:forcetypeassert // the line above made it.
				list[i] = e
			}
		}
		return list, nil
	case *view.Tree:
		var list []Each
		u.Walk("", func(path string, k view.Key) bool {
			list = append(list, Each{Key: path, Value: string(k.Value)})
			return true
		})
		return list, nil
	case nil:
		return nil, fmt.Errorf("%s: %w", source, ErrUnknown)
	}
	return nil, fmt.Errorf("for_each takes a config, a group or groups, not %s", source)
}

// Equal reports whether both elements give the same text.
func (e *Each) Equal(o *Each) bool {
	if e == nil || o == nil {
		return e == o
	}
	if e.Key != o.Key || e.OnEmpty != o.OnEmpty {
		return false
	}
	switch a := e.Value.(type) {
	case []view.Member:
		b, ok := o.Value.([]view.Member)
		return ok && (&view.Group{Members: a}).SameMembers(&view.Group{Members: b})
	case view.Member:
		b, ok := o.Value.(view.Member)
		return ok && a.Equal(b)
	}
	return reflect.DeepEqual(e.Value, o.Value)
}

// empty is the error of an element whose group has no members.
func (e *Each) empty(hasElse bool) error {
	if e == nil {
		return nil
	}
	if members, ok := e.Value.([]view.Member); !ok || len(members) > 0 {
		return nil
	}
	return emptyGroup(e.Key, e.OnEmpty, hasElse)
}
