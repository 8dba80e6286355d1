package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/translate"
	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

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

// withProgram is one run of the other program.
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

// keys are the keys at the paths that the other program asks for.
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
		answer = w.consulKeys(key, q.Has("recurse"))
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

func (w *withProgram) consulKeys(key string, below bool) []map[string]any {
	keys, list := w.keys(), []map[string]any{}
	for _, at := range slices.Sorted(maps.Keys(keys)) {
		if at = at[1:]; at == key || below && strings.HasPrefix(at, key) {
			list = append(list, map[string]any{"Key": at, "Value": []byte(keys["/"+at]), "CreateIndex": 1, "ModifyIndex": 1})
		}
	}
	return list
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

// groups are the groups by the names of the services.
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
