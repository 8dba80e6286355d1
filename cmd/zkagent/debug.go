package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/doctor"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
)

const askLimit = 5 * time.Second

const maxDebugFile = 8 << 20

func newDebugCommand(g *globals) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "debug", Short: "Collect the data that a bug report needs, without secrets",
		Long: `Gather status, events, metrics, stacks, the settings and the findings of
"zkagent doctor" in one archive. The command removes secrets: the credentials of the
settings, and everything that looks like a password, a token or a key. The archive
has no data from ZooKeeper and no rendered files. Look at it before you share it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return writeDebugBundle(c.Context(), g, out) },
	}
	c.Flags().StringVar(&out, "file", "", "file to write; - is standard output (default: zkagent-debug-TIME.tar.gz in this directory)")
	return c
}

type bundleFile struct {
	name string
	data []byte
}

func writeDebugBundle(ctx context.Context, g *globals, out string) error {
	list, loaded := doctor.Examine(ctx, doctorOptions(g, true))
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var conf *agent.Config
	var known []string
	if loaded != nil {
		conf, known = &loaded.Config, loaded.Secrets()
	}
	bundle := debugFiles(ctx, g, list, conf)
	r := newRedactor(append(known, settingSecrets(g, conf)...))
	for _, f := range bundle {
		if strings.HasSuffix(f.name, ".hcl") {
			r.learn(string(f.data))
		}
	}
	for i := range bundle {
		data := r.text(string(bundle[i].data))
		bundle[i].data = []byte(data[:min(len(data), maxDebugFile)])
	}
	now := time.Now().UTC()
	name := "zkagent-debug-" + now.Format("20060102T150405Z")
	data, err := pack(name, now, bundle)
	if err != nil {
		return err
	}
	if out == "-" {
		g.Printf("%s", data)
		return nil
	}
	out = cmp.Or(out, name+".tar.gz")
	if err = os.WriteFile(out, data, 0o600); err == nil {
		g.Say("wrote %s with %s; look at it before you give it away", out, term.Count(len(bundle), "file"))
	}
	return err
}

// settingSecrets returns the credentials that this process knows.
func settingSecrets(g *globals, conf *agent.Config) []string {
	list := []string{os.Getenv("ZKAGENT_AUTH")}
	c, _ := g.doctorZK(conf) // with an error it has what the settings have
	for _, a := range c.Auth {
		list = append(list, string(a.Data))
	}
	if dir, _ := unitEnv("CREDENTIALS_DIRECTORY"); dir != "" {
		names, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, n := range names {
			if data, err := files.ReadNamed(n, files.MaxSize); err == nil {
				list = append(list, string(data))
			}
		}
	}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		if settings.SecretName(name) {
			list = append(list, value)
		}
	}
	return list
}

// debugFiles collects the files of the bundle. It lists failures in errors.txt.
func debugFiles(ctx context.Context, g *globals, list []doctor.Finding, conf *agent.Config) []bundleFile {
	var bundle []bundleFile
	var problems strings.Builder
	add := func(name string, data []byte, err error) {
		if err != nil {
			fmt.Fprintf(&problems, "%s: %v\n", name, err)
			return
		}
		bundle = append(bundle, bundleFile{name, data})
	}
	findings, err := json.MarshalIndent(list, "", "  ")
	add("doctor.json", findings, err)
	build := buildVersion() + "\n"
	if info, ok := debug.ReadBuildInfo(); ok {
		build += info.String()
	}
	add("build.txt", []byte(build), nil)
	if socket, err := g.socket(); err == nil {
		client := web.NewClient(socket)
		for name, from := range map[string]string{
			"status.json": "/status", "events.json": "/events", "metrics.txt": "/metrics", "stacks.txt": "/debug/pprof/goroutine?debug=1", "fleet.json": "/fleet",
		} {
			wait, cancel := context.WithTimeout(ctx, askLimit)
			data, err := client.Raw(wait, from)
			cancel()
			add(name, data, err)
		}
	}
	if conf != nil {
		for _, f := range conf.Files {
			data, err := files.ReadNamed(f, files.MaxSize)
			add(path.Join("settings", strings.TrimPrefix(filepath.ToSlash(filepath.Clean(f)), "/")), data, err)
		}
	}
	for _, f := range []string{"/etc/os-release", "/proc/meminfo", "/proc/loadavg", "/proc/version"} {
		data, err := os.ReadFile(f)
		add(path.Join("host", path.Base(f)), data, err)
	}
	if problems.Len() > 0 {
		add("errors.txt", []byte(problems.String()), nil)
	}
	slices.SortFunc(bundle, func(a, b bundleFile) int { return strings.Compare(a.name, b.name) })
	return bundle
}

func pack(dir string, at time.Time, files []bundleFile) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, f := range files {
		h := &tar.Header{Name: dir + "/" + f.name, Mode: 0o600, Size: int64(len(f.data)), ModTime: at, Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		_, _ = w.Write(f.data) // Close returns its error
	}
	err := errors.Join(w.Close(), zip.Close())
	return out.Bytes(), err
}

func newDoctorCommand(g *globals) *cobra.Command {
	var noWrite bool
	c := &cobra.Command{
		Use: "doctor", Short: "Find out why the agent does not work on this host",
		Long: `Check everything that the agent needs: the settings, each server of the
ensemble with its latency, permissions in ZooKeeper, the clock, the files to be
written, the programs to be run, systemd and polkit. Run it as the user of the
agent, for example: runuser -u zkagent -- zkagent doctor. To measure the clock
and the right to write, one ephemeral znode is created below /zkagent and deleted;
--no-write leaves that out. The exit code is 1 when something fails.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list, _ := doctor.Examine(c.Context(), doctorOptions(g, noWrite))
			if err := context.Cause(c.Context()); err != nil {
				return err
			}
			failed, warned := 0, 0
			t := &term.Table{Header: []string{"", "CHECK", "ABOUT", "FINDING"}}
			for _, f := range list {
				severity := show.OK
				switch f.Level {
				case doctor.LevelFail:
					failed, severity = failed+1, show.Critical
				case doctor.LevelWarn:
					warned, severity = warned+1, show.Warning
				}
				t.Add(colored(&g.Console, severity, f.Level), f.Check, f.About, f.Text)
				if f.Hint != "" {
					t.Add("", "", "", "hint: "+f.Hint)
				}
			}
			if g.IsJSON() {
				_ = term.PrintList(&g.Console, "findings", list)
			} else {
				_ = g.PrintTable(t)
				g.Say("%s, %s", term.Count(failed, "failure"), term.Count(warned, "warning"))
			}
			if failed > 0 {
				return codeError(exitFailed)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&noWrite, "no-write", false, "do not test the clock and writing: by default an ephemeral znode is created and deleted")
	return c
}

// doctorOptions say where the doctor looks.
func doctorOptions(g *globals, noWrite bool) *doctor.Options {
	o := &doctor.Options{
		Env: unitEnv, Socket: g.socket, ZooKeeper: g.doctorZK, Version: buildVersion(), Wait: g.timeout, NoWrite: noWrite,
	}
	if g.configNamed() || exists(defaultConfig) {
		o.Paths = g.configPaths()
	}
	return o
}

func (g *globals) doctorZK(conf *agent.Config) (session.Config, error) {
	if conf != nil {
		return g.zkConfigOf(conf)
	}
	c, _, err := g.zkConfig()
	return c, err
}

const redacted = "(secret)"

// redactor removes secrets from texts: known secrets anywhere, and text that looks
// like a secret. It prefers to remove too much.
type redactor struct{ known []string }

// minRedact is the least length of a known secret to search for. A shorter one
// would match everywhere.
const minRedact = 3

// newRedactor returns a redactor for secrets that are known to us. Parts of
// "user:password", and the forms in which they may be encoded, are known, too.
func newRedactor(secrets []string) *redactor {
	r := &redactor{}
	for _, s := range secrets {
		for _, part := range append(strings.Split(s, ":")[1:], s) {
			part = strings.TrimSpace(part)
			if len(part) < minRedact {
				continue
			}
			r.know(part)
		}
	}
	r.sort()
	return r
}

// know adds a secret in every encoding in which the files of an archive hold
// values: JSON with and without HTML escapes, Go and HCL quotes, base64, hex,
// parts of URLs, HTML.
func (r *redactor) know(secret string) {
	b := []byte(secret)
	escaped, _ := json.Marshal(secret) // A text is always JSON.
	r.known = append(
		r.known, secret, url.QueryEscape(secret), url.PathEscape(secret), lowerPercent(url.QueryEscape(secret)), lowerPercent(url.PathEscape(secret)),
		html.EscapeString(secret),
		strings.Trim(string(escaped), `"`), strings.Trim(strconv.Quote(secret), `"`), strings.Trim(strconv.QuoteToASCII(secret), `"`),
		base64.StdEncoding.EncodeToString(b), base64.RawStdEncoding.EncodeToString(b), base64.URLEncoding.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b),
		hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)),
	)
	if inner := strings.Trim(string(escaped), `"`); inner != secret { // JSON within JSON.
		twice, _ := json.Marshal(inner)
		r.known = append(r.known, strings.Trim(string(twice), `"`))
	}
}

var percent = regexp.MustCompile(`%[0-9A-F]{2}`)

// lowerPercent is a part of a URL with the escapes as some programs write them.
func lowerPercent(s string) string { return percent.ReplaceAllStringFunc(s, strings.ToLower) }

// sort puts the longest first: a secret may be a part of another.
func (r *redactor) sort() {
	slices.SortFunc(r.known, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	r.known = slices.Compact(r.known)
}

// minLearned is the least length of a learned value: see learn.
const minLearned = 6

// learn adds the values in a text that look like secrets, because they may also
// occur without their name: in headers, query strings, arguments.
func (r *redactor) learn(text string) {
	for _, p := range patterns {
		for _, m := range p.FindAllStringSubmatchIndex(text, -1) {
			end := m[1]
			if len(m) > 4 {
				end = m[4]
			}
			value := strings.Trim(text[m[3]:end], `"' `)
			if unquoted, err := strconv.Unquote(`"` + value + `"`); err == nil {
				value = unquoted
			}
			if len(value) >= minLearned && !strings.Contains(value, "(") && !strings.ContainsAny(value, "\n") && value != "(secret)" {
				r.know(value)
			}
		}
	}
	r.sort()
}

// patterns match text that looks like a secret. The first group stays.
var patterns = []*regexp.Regexp{
	regexp.MustCompile(`(?s)(-----BEGIN [A-Z0-9 ]*-----).*?-----END [A-Z0-9 ]*-----`),
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@"']*:)[^\s/@"']+(@)`),
	regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{6,}`),
	regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|credential|api[_-]?key|private[_-]?key|auth|digest)[a-z0-9_.-]*"?\s*(?:=>|[=:])\s*)"(?:[^"\\]|\\.)*"`),
	regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:passw(?:or)?d|passphrase|passwd|secret|token|credential|api[_-]?key|private[_-]?key|auth|digest)[a-z0-9_.-]*"?\s*(?:=>|[=:])\s*)[^\s"'{\[(),;]+`),
	regexp.MustCompile(`(?i)("?--?[a-z-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api-?key)[a-z-]*"?(?:\s*,\s*|\s+))"(?:[^"\\]|\\.)*"`),
	regexp.MustCompile(`(?i)(--?[a-z-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api-?key)[a-z-]*\s+)[^\s"',;]+`),
	regexp.MustCompile(`(?i)("(?:-u|--user)"\s*,\s*"[^":]*:)[^"]+`),
	regexp.MustCompile(`(?i)([?&](?:sig|signature|key|sas|code)=)[^\s"'&#]+`),
	regexp.MustCompile(`(?i)(\b(?:super|digest|sasl|auth):[a-z0-9_.-]+:)[^\s"',;]+`),
}

// heredoc is a text of several lines in settings whose name looks secret.
var heredoc = regexp.MustCompile(`(?ims)((?:passw(?:or)?d|secret|token|credential|private_key|key_pem)[a-z0-9_]*\s*=\s*<<[-~]?\s*)([A-Z0-9_]+)\n.*?\n\s*\b[A-Z0-9_]+\b`)

func (r *redactor) text(s string) string {
	for _, k := range r.known {
		s = strings.ReplaceAll(s, k, redacted)
	}
	s = heredoc.ReplaceAllString(s, "${1}"+redacted)
	for _, p := range patterns {
		with := "${1}" + redacted
		if p.NumSubexp() > 1 {
			with += "${2}"
		}
		s = p.ReplaceAllString(s, with)
	}
	return s
}
