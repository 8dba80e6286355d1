package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/tmpltest"
	"github.com/zkagent/zkagent/internal/translate"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

var importKinds = map[string][]string{
	"consul-template": {".hcl", ".json", ".ctmpl.hcl"}, "confd": {".toml"}, "remco": {".toml"}, "nerve": {".json", ".yaml"}, "synapse": {".json", ".yaml"},
}

type importOptions struct {
	dir          string
	templates    []string
	data, golden string
	with         string
}

func newImportCommand(g *globals) *cobra.Command {
	var o importOptions
	kinds := slices.Sorted(maps.Keys(importKinds))
	c := &cobra.Command{
		Use: "import consul-template|confd|remco|nerve|synapse FILE|DIR", Short: "Translate the settings and templates of another program",
		Long: `Translate the settings and templates of consul-template (HCL or JSON), confd or
remco (TOML), and the settings of Nerve and Synapse (JSON). If it
cannot translate a part, it never writes an empty value instead. It marks the place:
in the settings by a comment with "import:", in a template by an action that fails.
validate refuses both marks. The command prints the marks on standard error, writes
the rest anyway, and exits with 1.

The settings are printed with the templates in them; --dir writes zkagent.hcl
and templates/ into a directory instead, and replaces nothing that is there.
For confd name its directory, or one file of conf.d. Flags -template of
consul-template are given by --template, and need no file.

--verify DATA --golden DIR renders each template with the data of a file, as
"zkagent test" has them, and compares it with the file that the other program rendered
from the same data: DIR/etc/a.conf, or DIR/a.conf, for /etc/a.conf. For confd and
consul-template --with PROGRAM in place of --golden runs that program on this
host with the same data. It runs without its commands and with an empty
environment, and writes only into a temporary directory.`,
		Args: cobra.RangeArgs(1, 2), ValidArgs: kinds,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !slices.Contains(kinds, args[0]):
				return usagef("import knows %s, not %q", strings.Join(kinds, ", "), args[0])
			case (o.data == "") != (o.golden+o.with == "") || o.golden != "" && o.with != "":
				return usagef("--verify needs one of --golden and --with: the files that the other program rendered from the data, or the program")
			case o.with != "" && args[0] != "confd" && args[0] != "consul-template":
				return usagef("--with runs confd and consul-template; for %s render the data with it and name the directory of its files with --golden", args[0])
			case len(o.templates) > 0 && args[0] != "consul-template":
				return usagef("--template is for consul-template")
			case len(args) == 1 && len(o.templates) == 0:
				return usagef("name the file or directory of %s", args[0])
			}
			return importFrom(c.Context(), &g.Console, args[0], args[1:], o)
		},
	}
	c.Flags().StringVar(&o.dir, "dir", "", "write zkagent.hcl and templates/ into this directory (default: print them)")
	c.Flags().StringVar(&o.data, "verify", "", "render each template with the data of this file and compare it with --golden or --with")
	c.Flags().StringVar(&o.golden, "golden", "", "directory of the files that the other program rendered from the data of --verify")
	c.Flags().StringVar(&o.with, "with", "", "the other program, by its name or path: it renders the data of --verify")
	c.Flags().StringArrayVar(&o.templates, "template", nil, "a template of consul-template's command line, as in SOURCE:DESTINATION:COMMAND")
	return c
}

func importFrom(ctx context.Context, console *term.Console, kind string, paths []string, o importOptions) error {
	dir := o.dir
	r, err := translated(kind, paths, o.templates)
	if err != nil {
		return err
	}
	text, err := settings.Format("zkagent.hcl", []byte(r.Settings(dir == "")))
	if err != nil {
		return fmt.Errorf("translate: %w", err)
	}
	r.EachNote(func(text string, lost bool) {
		if lost {
			console.Warnf("%s", text)
		} else {
			console.Say("note: %s", text)
		}
	})
	if n := len(r.Templates); o.data == "" && n > 0 {
		console.Say("%s translated, %d of them with marks; --verify compares their output with that of the other program", term.Count(n, "template"), r.Flagged())
	}
	if dir == "" {
		console.Printf("%s", text)
	} else {
		err = writeImport(console, dir, text, r)
	}
	if err == nil && o.data != "" {
		err = verifyImport(ctx, console, r, kind, o)
	}
	if n := r.Lost(); err == nil && n > 0 {
		return fail(exitFailed, fmt.Errorf("%s not translated", term.Count(n, "construct")), `each has the mark "import:" in the result; validate refuses the result until you remove the marks`)
	}
	if err == nil {
		err = validImport(console, r)
	}
	return err
}

func translated(kind string, paths, templates []string) (*translate.Result, error) {
	var r *translate.Result
	for _, path := range paths {
		files, err := importFiles(kind, path)
		if err != nil {
			return nil, fail(exitUsage, err)
		}
		for _, name := range files {
			data, err := readImport(name)
			if err != nil {
				return nil, err
			}
			read := func(src string) ([]byte, error) { // relative to the settings that name it
				if !filepath.IsAbs(src) {
					src = filepath.Join(filepath.Dir(name), src)
				}
				return readImport(src)
			}
			switch kind {
			case "confd":
				r, err = translate.Confd(r, name, data, read)
			case "remco":
				r, err = translate.Remco(r, name, data, read)
			case "nerve":
				r, err = translate.Nerve(r, name, data)
			case "synapse":
				r, err = translate.Synapse(r, name, data)
			default:
				r, err = translate.ConsulTemplate(r, name, data, read)
			}
			if err != nil {
				return nil, fail(exitConfig, err)
			}
		}
	}
	for _, t := range templates {
		var err error
		if r, err = translate.ConsulTemplateFlag(r, t, readImport); err != nil {
			return nil, fail(exitUsage, err)
		}
	}
	if kind == "consul-template" {
		translate.ConsulTemplateEnv(r, os.LookupEnv)
	}
	return r, nil
}

func verifyImport(ctx context.Context, console *term.Console, r *translate.Result, kind string, o importOptions) error {
	dir, err := os.MkdirTemp("", "zkagent-import-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if o.with != "" {
		o.golden, err = renderWith(ctx, console, r, kind, dir, o)
	}
	data, bad := filepath.Abs(o.data)
	golden, worse := filepath.Abs(o.golden)
	if err := cmp.Or(err, bad, worse); err != nil {
		return err
	}
	var tests []map[string]string
	missing := 0
	for _, t := range r.Templates {
		want := filepath.Join(golden, t.Destination)
		if !exists(want) {
			want = filepath.Join(golden, filepath.Base(t.Destination))
		}
		switch {
		case t.Flagged():
		case exists(want):
			tests = append(tests, map[string]string{"name": t.Name, "template": t.Name, "data_file": data, "want_file": want})
		default:
			missing++
			console.Warnf("template %s is not verified: %s has no %s", t.Name, cmp.Or(o.with, o.golden), t.Destination)
		}
	}
	ok := 0
	if len(tests) > 0 {
		results, err := verified(ctx, r, dir, tests)
		if err != nil {
			return err
		}
		for _, res := range results {
			if res.OK {
				ok++
				continue
			}
			console.Warnf("template %s: %s", res.Name, res.Error)
			console.Say("%s", res.Diff)
		}
	}
	console.Say("%s: %d identical, %d different, %d flagged, %d not verified", term.Count(len(r.Templates), "file"), ok, len(tests)-ok, r.Flagged(), missing)
	if ok < len(tests) {
		return fail(exitFailed, fmt.Errorf("%s not the same", term.Count(len(tests)-ok, "file")), "the differences are above: - is the other program, + is zkagent")
	}
	return nil
}

// verified runs the tests, of templates that are not flagged, in a temporary directory.
func verified(ctx context.Context, r *translate.Result, dir string, tests []map[string]string) ([]tmpltest.Result, error) {
	file, err := json.Marshal(map[string]any{"settings": "zkagent.hcl", "tests": tests})
	if err != nil {
		return nil, err
	}
	// With their marks, settings are not read.
	text := strings.ReplaceAll(r.Settings(true), "import:", "import")
	name := filepath.Join(dir, "import_test.yaml")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "zkagent.hcl"), []byte(text), 0o600), os.WriteFile(name, file, 0o600)); err != nil {
		return nil, err
	}
	return tmpltest.Run(ctx, []string{name}, tmpltest.Options{Match: regexp.MustCompile("")})
}

func validImport(console *term.Console, r *translate.Result) error {
	s, err := settings.LoadBytes(filepath.Join(os.TempDir(), "zkagent.hcl"), []byte(r.Settings(true)), settings.Options{Offline: true})
	if err == nil {
		return nil
	}
	for _, d := range s.Diagnostics {
		console.Warnf("%s: %s", d.Summary, strings.Join(strings.Fields(d.Detail), " "))
	}
	return fail(exitFailed, errors.New("the result is not valid"), "correct the places that the warnings above name; zkagent validate shows them")
}

func readImport(name string) ([]byte, error) { return files.ReadNamed(name, files.MaxSize) }

func importFiles(kind, path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	ext := importKinds[kind]
	var files []string
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.Contains(ext, filepath.Ext(name)) {
			files = append(files, name)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s holds no settings of %s", path, kind)
	}
	return files, err
}

// writeImport writes the files. It never replaces an existing file.
func writeImport(console *term.Console, dir string, text []byte, r *translate.Result) error {
	if err := os.MkdirAll(filepath.Join(dir, "templates"), 0o755); err != nil { //nolint:gosec // settings that others may read.
		return err
	}
	files := map[string]string{filepath.Join(dir, "zkagent.hcl"): string(text)}
	for _, t := range r.Templates {
		if t.Text != "" {
			files[filepath.Join(dir, "templates", t.Name+".tmpl")] = t.Text
		}
	}
	for name := range files {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fail(exitFailed, fmt.Errorf("%s exists", name), "name an empty directory")
		}
	}
	for name, data := range files {
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil { //nolint:gosec // as above.
			return err
		}
	}
	console.Say("%s written to %s; next: zkagent validate %s", term.Count(len(files), "file"), dir, dir)
	return nil
}

// withTimeout is how long the other program may render. consul-template waits without end
// for a key that is not there.
const withTimeout = 20 * time.Second

// renderWith has the other program render the data into a directory below dir. It runs none
// of its commands, and has an empty environment, as "zkagent test" has.
func renderWith(ctx context.Context, console *term.Console, r *translate.Result, kind, dir string, o importOptions) (string, error) {
	binary, err := exec.LookPath(o.with)
	if err == nil {
		binary, err = filepath.Abs(binary)
	}
	if err != nil {
		return "", fail(exitUsage, err)
	}
	data, err := readImport(o.data)
	if err != nil {
		return "", err
	}
	v, err := template.LoadFixture(data)
	if err != nil {
		return "", fail(exitUsage, fmt.Errorf("%s: %w", o.data, err))
	}
	w := withProgram{r: r, v: &v, dir: dir, golden: filepath.Join(dir, "golden"), files: map[string][]byte{}}
	var args []string
	if kind == "confd" {
		args, err = w.confd()
	} else {
		server := httptest.NewServer(http.HandlerFunc(w.consul))
		defer server.Close()
		args, err = w.consulTemplate(server.URL)
	}
	for name, text := range w.files {
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, text, 0o600))
		}
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, withTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, binary, args...) //nolint:gosec // the operator names the program.
	c.Dir, c.Env, c.WaitDelay = dir, []string{}, time.Second
	if out, err := c.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end in %s: it waits for a key or a service that %s does not have", withTimeout, o.data)
		}
		console.Warnf("%s: %v: %s", o.with, err, bytes.TrimSpace(out))
	}
	return w.golden, nil
}

type withProgram struct {
	r           *translate.Result
	v           *view.View
	dir, golden string
	files       map[string][]byte // what it reads, by path
}

// each calls fn for the templates that are not flagged, with an empty place for the file.
func (w *withProgram) each(fn func(n int, o translate.Original, dest string)) error {
	for n, t := range w.r.Templates {
		if t.Flagged() {
			continue
		}
		dest := filepath.Join(w.golden, t.Destination)
		if err := os.MkdirAll(filepath.Dir(dest), 0o700); err != nil {
			return err
		}
		fn(n, w.r.Original(t), dest)
	}
	return nil
}

func (w *withProgram) keys() map[string]string {
	keys := map[string]string{}
	for name, at := range w.r.OriginalPaths() {
		if t, ok := w.v.Tree(name); ok {
			for key, k := range t.Keys().All() {
				keys[path.Join("/", at, key)] = string(k.Value)
			}
		}
	}
	return keys
}

func (w *withProgram) confd() ([]string, error) {
	data, err := json.Marshal(w.keys()) // YAML, too, in which every value is a text
	if err != nil {
		return nil, err
	}
	source := filepath.Join(w.dir, "data", "keys.yaml")
	w.files[source] = data
	var errs []error
	err = w.each(func(n int, o translate.Original, dest string) {
		src := fmt.Sprintf("%d.tmpl", n)
		text, err := toml.Marshal(map[string]any{"template": map[string]any{"src": src, "dest": dest, "keys": o.Keys, "prefix": o.Prefix}})
		errs = append(errs, err)
		w.files[filepath.Join(w.dir, "conf.d", fmt.Sprintf("%d.toml", n))] = text
		w.files[filepath.Join(w.dir, "templates", src)] = []byte(o.Text)
	})
	return []string{
		"-onetime", "-sync-only", "-backend", "file", "-file", source, "-confdir", w.dir, "-config-file", filepath.Join(w.dir, "none"), "-log-level", "error",
	}, errors.Join(append(errs, err)...)
}

func (w *withProgram) consulTemplate(server string) ([]string, error) {
	list := []map[string]any{}
	err := w.each(func(_ int, o translate.Original, dest string) {
		list = append(list, map[string]any{
			"contents": o.Text, "destination": dest, "left_delimiter": o.Left, "right_delimiter": o.Right, "error_on_missing_key": o.Strict,
		})
	})
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"consul": map[string]any{"address": server, "retry": map[string]any{"enabled": false}}, "template": list, "log_level": "err",
	})
	name := filepath.Join(w.dir, "config.json")
	w.files[name] = config
	return []string{"-once", "-config", name}, err
}

// consul answers what consul-template asks a Consul.
func (w *withProgram) consul(rw http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	if index := q.Get("index"); index != "" && index != "0" { // a watch: nothing changes
		<-req.Context().Done()
		return
	}
	rw.Header().Set("X-Consul-Index", "1")
	key, isKey := strings.CutPrefix(req.URL.Path, "/v1/kv/")
	name, isService := strings.CutPrefix(req.URL.Path, "/v1/health/service/")
	var answer any
	switch {
	case isKey:
		keys, list := w.keys(), []map[string]any{}
		for _, at := range slices.Sorted(maps.Keys(keys)) {
			if at = at[1:]; at == key || q.Has("recurse") && strings.HasPrefix(at, key) {
				list = append(list, map[string]any{"Key": at, "Value": []byte(keys["/"+at]), "CreateIndex": 1, "ModifyIndex": 1})
			}
		}
		answer = list
	case isService:
		answer = w.consulService(name, q["tag"])
	case req.URL.Path == "/v1/catalog/services":
		names := map[string][]string{}
		for name, g := range w.groups() {
			for _, m := range g.Members {
				names[name] = append(names[name], m.Tags()...)
			}
			slices.Sort(names[name])
			names[name] = slices.Compact(names[name])
		}
		answer = names
	default:
		http.Error(rw, req.URL.Path+" is not among the data", http.StatusNotImplemented)
		return
	}
	_ = json.NewEncoder(rw).Encode(answer) // an answer that nobody reads is no fault
}

func (w *withProgram) consulService(name string, tags []string) []map[string]any {
	list := []map[string]any{}
	g := w.groups()[name]
	if g == nil {
		return list
	}
	for _, m := range g.Members {
		if slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(m.Tags(), tag) }) {
			continue
		}
		status := "passing"
		if !m.MayServe() {
			status = "critical"
		}
		list = append(list, map[string]any{
			"Node":    map[string]any{"ID": m.Node, "Node": m.Node, "Address": m.Host},
			"Service": map[string]any{"ID": m.ID, "Service": name, "Address": m.Host, "Port": m.Port, "Tags": m.Tags(), "Meta": m.Meta()},
			"Checks":  []map[string]any{{"Node": m.Node, "CheckID": "data", "Status": status, "ServiceID": m.ID}},
		})
	}
	return list
}

func (w *withProgram) groups() map[string]*view.Group {
	groups := map[string]*view.Group{}
	if set, ok := w.v.Groups("services"); ok {
		for _, g := range set.Groups {
			groups[g.Name] = g
		}
	}
	for name, label := range w.r.OriginalServices() {
		if g, ok := w.v.Group(label); ok {
			groups[name] = g
		}
	}
	return groups
}
