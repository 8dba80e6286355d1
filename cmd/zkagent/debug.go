package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
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

// doctorZK is how to reach ZooKeeper: with the settings, as far as they could
// be loaded.
func (g *globals) doctorZK(conf *agent.Config) (session.Config, error) {
	if conf != nil {
		return g.zkConfigOf(conf)
	}
	c, _, err := g.zkConfig()
	return c, err
}
