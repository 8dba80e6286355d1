package blame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"
	"strings"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// ErrNoFile says that no template of the settings makes a file of that name.
var ErrNoFile = errors.New("no template of the settings makes it")

// Query asks for the reports of files.
type Query struct {
	Name     string // of a bundle or template, or as Path
	Path     string // of a file: absolute, because the agent has another working directory
	From, To int    // lines from 1; 0: all
	Missing  string
	// Version names another version of a config than the one in use, as N or
	// CONFIG=N. Empty: the version in use.
	Version string
}

// Values returns the query as URL parameters.
func (q Query) Values() url.Values {
	return url.Values{
		"name": {q.Name}, "path": {q.Path}, "from": {strconv.Itoa(q.From)}, "to": {strconv.Itoa(q.To)}, "missing": {q.Missing}, "version": {q.Version},
	}
}

// ParseQuery is the inverse of Values.
func ParseQuery(v url.Values) (Query, error) {
	q := Query{Name: v.Get("name"), Path: cmp.Or(v.Get("path"), v.Get("name")), Missing: v.Get("missing"), Version: v.Get("version")}
	for name, to := range map[string]*int{"from": &q.From, "to": &q.To} {
		var err error
		if *to, err = strconv.Atoi(cmp.Or(v.Get(name), "0")); err != nil || *to < 0 {
			return q, fmt.Errorf("%s is %q, not a number of a line", name, v.Get(name))
		}
	}
	return q, nil
}

// Answer makes the reports of all files that the query names. It uses the session
// only to read versions. If s is nil, why says why there is no session.
func Answer(ctx context.Context, bundles []*apply.Bundle, v view.View, s *session.Session, why error, q Query) ([]*File, error) {
	var origins Origins
	if s != nil {
		origins = func(ctx context.Context, t *view.Tree, keys []string) (map[string]config.Origin, error) {
			return config.Origins(ctx, s, t.Path, t.Generation, keys)
		}
	}
	var files []*File
	for _, b := range bundles {
		match := b.Match(q.Name, q.Path)
		if b.Err != nil {
			for i := range b.Config.Templates {
				if match("", &b.Config.Templates[i]) {
					return nil, b.Err
				}
			}
			continue
		}
		at, err := withVersion(ctx, b, v, s, why, q.Version)
		if err != nil {
			return nil, err
		}
		list, err := b.Blame(ctx, at, match, q.Missing)
		if err != nil {
			return nil, err
		}
		for i := range list {
			f := New(ctx, at, &list[i], q, origins)
			if q.Version == "" {
				f.compare(&list[i])
			}
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: %w", q.Name, ErrNoFile)
	}
	return files, nil
}

// compare adds a note if the file in place differs from the report.
func (f *File) compare(b *apply.Blamed) {
	data, _, err := b.Config.Present(b.Destination)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Notes = append(f.Notes, "the file does not exist: the agent would write this")
	case err != nil:
		f.Notes = append(f.Notes, err.Error())
	case string(data) != string(b.Data):
		f.Notes = append(f.Notes, "the file in place differs from this: a change is pending, was refused, or somebody edited the file")
	}
}

// withVersion replaces a config in the view by the version that the query names.
func withVersion(ctx context.Context, b *apply.Bundle, v view.View, s *session.Session, why error, version string) (view.View, error) {
	if version == "" {
		return v, nil
	}
	name, number, named := strings.Cut(version, "=")
	if !named {
		number = version
		var configs []string
		for _, src := range b.Sources {
			if src.Kind == view.KindConfig {
				configs = append(configs, src.Name)
			}
		}
		if len(configs) != 1 {
			return v, fmt.Errorf("%s uses %d configs: name the one with version %s, as in --version NAME=%s", b.Config.Name, len(configs), version, version)
		}
		name = configs[0]
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(number, "v"), 10, 64)
	if err != nil || n <= 0 {
		return v, fmt.Errorf("version %q is not a number", number)
	}
	t, ok := v.Tree(name)
	if !ok {
		return v, fmt.Errorf("config %q is not among the data", name)
	}
	if s == nil {
		return v, fmt.Errorf("version %d of config %s cannot be read: %w", n, name, why)
	}
	next, err := config.ReadVersion(ctx, s, t.Path, n)
	if err != nil {
		return v, err
	}
	meta := *next
	meta.Name, meta.Last = name, t.Last
	return v.With(view.NewTree(meta, next.Keys())), nil
}
