package template

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	sockaddr "github.com/hashicorp/go-sockaddr/template"
)

func outsideFunctions() map[string]function {
	return map[string]function{
		"env":             {allow: AllowEnv, make: func(st *state) any { return st.env }},
		"mustEnv":         {allow: AllowEnv, make: func(st *state) any { return st.mustEnv }},
		"envOrDefault":    {allow: AllowEnv, make: func(st *state) any { return st.envOrDefault }},
		"credential":      {allow: AllowCredential, make: func(st *state) any { return st.credential }},
		"file":            {allow: AllowFile, make: func(st *state) any { return st.file }},
		"sockaddr":        {make: func(st *state) any { return st.sockaddr }},
		"timestamp":       {make: func(st *state) any { return st.timestamp }},
		"executeTemplate": {make: func(st *state) any { return st.executeTemplate }},
		"scratch":         {make: func(st *state) any { return st.scratchPad }},
		"spew_dump":       {make: func(st *state) any { return st.dump }},
		"spew_printf":     {make: func(st *state) any { return st.dumpFormat }},
	}
}

func (st *state) lookupEnv(name string) (string, bool) {
	lookup := st.t.cfg.LookupEnv
	if lookup == nil {
		lookup = os.LookupEnv
	}
	v, ok := lookup(name)
	st.readText(v)
	return v, ok
}

func (st *state) readText(v string) {
	if len(v) >= minSecret {
		st.reads = append(st.reads, read{value: v})
	}
}

func (st *state) env(name string) string {
	v, _ := st.lookupEnv(name)
	return v
}

func (st *state) mustEnv(name string) (string, error) {
	v := st.env(name)
	if v == "" {
		return "", failf(ErrMissing, name, "environment variable %s is not set or empty", name)
	}
	return v, nil
}

func (st *state) envOrDefault(name, def string) string {
	if v, ok := st.lookupEnv(name); ok {
		return v
	}
	return def
}

// credential returns a credential that systemd gave the agent, without its last
// line break.
func (st *state) credential(name string) (string, error) {
	if name == "" || name != filepath.Base(name) || name == ".." || name == "." {
		return "", failf(nil, "", "credential %q: that is not the name of a credential", name)
	}
	dir, _ := st.lookupEnv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return "", failf(ErrMissing, "", "credential %q: $CREDENTIALS_DIRECTORY is not set; give the unit a LoadCredential=%s:... line", name, name)
	}
	v, err := st.readBelow(dir, name)
	if err != nil {
		return "", failf(ErrMissing, "", "credential %q: %v", name, err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(v, "\n"), "\r"), nil
}

// file returns the content of a regular file below the template's directory;
// links that lead out of it are refused.
func (st *state) file(name string) (string, error) {
	if st.t.cfg.Dir == "" {
		return "", failf(ErrNotAllowed, name, "file %q: this template has no directory to read from", name)
	}
	path := name
	if filepath.IsAbs(name) {
		var err error
		if path, err = filepath.Rel(st.t.cfg.Dir, name); err != nil {
			return "", failf(ErrNotAllowed, name, "file %q is not below the template's directory", name)
		}
	}
	v, err := st.readBelow(st.t.cfg.Dir, path)
	if err != nil {
		return "", failf(ErrMissing, name, "file %q: %v", name, err)
	}
	return v, nil
}

// readBelow reads a regular file below a directory.
func (st *state) readBelow(dir, name string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // A FIFO must not block.
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("is not a regular file")
	}
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(f, maxValue+1))
	if err == nil && n > maxValue {
		err = tooLarge(int(n))
	}
	st.readText(b.String())
	return b.String(), err
}

func (st *state) executeTemplate(name string, data ...any) (string, error) {
	if len(data) > 1 {
		return "", fmt.Errorf("executeTemplate takes a name and one value, not %d", len(data))
	}
	dot := append(data, nil)[0]
	if tree := st.t.trees[name]; tree == nil || tree.Root == nil {
		return "", fmt.Errorf("template %q is not defined", name)
	}
	var out bytes.Buffer
	outer := st.out
	defer func() { st.out = outer }()
	st.out = &limited{st: st, buf: &out, max: maxValue}
	if err := st.tmpl.ExecuteTemplate(st.out, name, dot); err != nil {
		return "", err
	}
	return out.String(), nil
}

// dump and dumpFormat print for debugging, where the caller wants it.
func (st *state) dump(args ...any) string {
	if w := st.t.cfg.Debug; w != nil {
		dumper.Fdump(w, args...)
	}
	return ""
}

func (st *state) dumpFormat(format string, args ...any) (string, error) {
	s, err := dumpf(format, args...)
	if w := st.t.cfg.Debug; err == nil && w != nil {
		_, err = io.WriteString(w, s)
	}
	return "", err
}

// sockaddr evaluates an expression of go-sockaddr on the addresses of this
// host, such as `GetPrivateIP` or `GetInterfaceIP "eth0"`. Several arguments
// are joined with spaces. The interfaces are read anew at each call; nothing
// is connected to. Some expressions ask the routing table, for which the
// library runs ip(8).
func (st *state) sockaddr(expression ...string) (string, error) {
	text := strings.Join(expression, " ")
	if st.t.cfg.Sockaddr != nil {
		return st.t.cfg.Sockaddr(text)
	}
	address, err := sockaddr.Parse("{{ " + text + " }}")
	if err != nil {
		reason := err.Error() // Not wrapped: its place is one in the expression.
		if _, after, ok := strings.Cut(reason, ">: "); ok {
			reason = after
		}
		return "", fmt.Errorf("expression of addresses: %s", reason)
	}
	return address, nil
}
