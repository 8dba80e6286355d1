// Package doctor finds what keeps an agent from working on a host. It checks the
// settings, each server, ZooKeeper, the files, the programs and systemd.
//
// Guaranteed: the doctor changes nothing, except that it creates and deletes one
// ephemeral znode. Options.NoWrite prevents even that.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/session"
)

// Levels of a finding.
const (
	LevelOK   = "ok"
	LevelWarn = "warn"
	LevelFail = "fail"
)

// waitLimit bounds each question to a server or program, unless --timeout
// says otherwise.
const waitLimit = 5 * time.Second

// Finding is the result of one check.
type Finding struct {
	Level string `json:"level"`
	Check string `json:"check"`
	About string `json:"about,omitempty"`
	Text  string `json:"text"`
	Hint  string `json:"hint,omitempty"`
}

// Options say where to look.
type Options struct {
	Paths     []string // of the settings; empty: check only ZooKeeper
	Env       func(string) (string, bool)
	Socket    func() (string, error)
	ZooKeeper func(*agent.Config) (session.Config, error) // nil settings: what the command line says
	Version   string
	Wait      time.Duration // bounds each question; 5s when it is 0
	NoWrite   bool          // make no znode
}

type doctor struct {
	o      *Options
	loaded *settings.Settings // nil: the settings cannot be loaded
	cfg    *agent.Config      // of the settings
	list   []Finding

	running     bool              // an agent answers on the socket
	checks      map[string]string // when its checks run, by template
	conditions  []show.Condition  // that it reports
	unreachable bool              // no server took a session
	files       []string          // the destinations that are known
	units       []unitVerb        // the systemd jobs that checks and reloads start
}

// wait bounds one question.
func (d *doctor) wait() time.Duration { return cmp.Or(d.o.Wait, waitLimit) }

func (d *doctor) add(level, check, about, text string, hint ...string) {
	d.list = append(d.list, Finding{level, check, about, text, strings.Join(hint, "")})
}

func (d *doctor) hint(format string, args ...any) {
	d.list[len(d.list)-1].Hint = fmt.Sprintf(format, args...)
}

// result adds a finding: fine with the text, or the error at the level, with a hint.
func (d *doctor) result(level, check, about string, err error, text string, hint ...string) bool {
	if err != nil {
		d.add(level, check, about, err.Error(), hint...)
		return false
	}
	d.add(LevelOK, check, about, text)
	return true
}

// Examine runs all checks. A check that cannot run becomes a finding; the others go
// on. It also returns the settings as far as it could load them, or nil.
func Examine(ctx context.Context, o *Options) ([]Finding, *settings.Settings) {
	d := &doctor{o: o}
	d.add(LevelOK, "version", "", fmt.Sprintf("zkagent %s, %s, %s/%s", d.o.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH))
	d.settings()
	d.agent(ctx)
	d.zooKeeper(ctx)
	if d.cfg != nil {
		d.dns(ctx)
		d.stateDir()
		d.destinations()
		d.commands()
		d.systemd(ctx)
	}
	d.remaining()
	return joined(d.list), d.loaded
}

// joined names a missing directory or program once, with everything that needs it.
func joined(list []Finding) []Finding {
	var once []Finding
	for _, f := range list {
		i := slices.IndexFunc(once, func(o Finding) bool {
			local := o.Check == "file" || o.Check == "check" || o.Check == "reload" || o.Check == "hook"
			return local && o.Level != LevelOK && o.Level == f.Level && o.Text == f.Text && o.Hint == f.Hint
		})
		switch {
		case i < 0:
			once = append(once, f)
		case !slices.Contains(strings.Split(once[i].About, ", "), f.About):
			once[i].About += ", " + f.About
		}
	}
	return once
}

func (d *doctor) settings() {
	if len(d.o.Paths) == 0 {
		d.add(LevelWarn, "settings", "", "there are no settings: only ZooKeeper is tested", "name them by --config")
		return
	}
	s, err := settings.Load(d.o.Paths, settings.Options{Env: d.o.Env})
	for _, x := range s.Diagnostics {
		level := LevelWarn
		if settings.Severity(x) == "error" {
			level = LevelFail
		}
		d.add(level, "settings", "", settings.Line(x))
	}
	if err == nil {
		d.add(LevelOK, "settings", strings.Join(s.Config.Files, " "), "valid")
	} else {
		if len(s.Diagnostics) == 0 {
			d.add(LevelFail, "settings", strings.Join(d.o.Paths, " "), err.Error())
		}
		// A finding reports what this user or host lacks, such as a credential.
		// Check the rest all the same.
		if s, err = settings.Load(d.o.Paths, settings.Options{Env: d.o.Env, Offline: true}); err != nil {
			return
		}
		d.hint("the unit has the credentials: run this as root or as the user of the agent, while it runs")
	}
	d.loaded, d.cfg = s, &s.Config
}

func (d *doctor) agent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	path, err := d.o.Socket()
	if err != nil {
		return // a finding reports the settings.
	}
	s, err := web.NewClient(path).Status(ctx)
	switch {
	case errors.Is(err, web.ErrNoAgent):
		d.add(LevelWarn, "agent", path, "no agent is running")
		return
	case err != nil:
		d.add(LevelFail, "agent", path, err.Error())
		return
	}
	d.running, d.checks = true, map[string]string{}
	for _, t := range s.Templates {
		d.checks[t.Name] = t.Check
	}
	d.add(LevelOK, "agent", path, fmt.Sprintf("%s is %s for %s: %s", s.Agent.ID, s.Agent.State, term.Age(s.Agent.Started), s.Summary))
	if s.Agent.Version != d.o.Version {
		d.add(LevelWarn, "version", "", fmt.Sprintf("the agent that runs is %s, this program is %s", s.Agent.Version, d.o.Version), "\"zkagent upgrade\" executes the new one and keeps the session")
	}
	if d.cfg != nil && s.Settings.Hash != d.cfg.Hash {
		d.add(LevelWarn, "settings", "", "the agent runs with other settings than those in the files", "\"zkagent reload\" loads them")
	}
	d.conditions = s.Conditions
}

// causes are the checks whose failure is the cause of a condition of the agent.
var causes = map[string][]string{
	condition.ZooKeeperUnreachable.Code: {"server"}, condition.ZooKeeperRefused.Code: {"server"}, condition.WaitingForSources.Code: {"server"},
	condition.DNSNotListening.Code: {"dns"}, condition.StateDir.Code: {"state"}, condition.HookFailed.Code: {"hook"}, condition.FilesStuck.Code: {"file"},
	condition.TemplateFailed.Code: {"file", "check", "reload"}, condition.ReloadFailed.Code: {"reload"}, condition.ReloadPending.Code: {"reload"},
}

// remaining adds the conditions of the agent whose cause no check has found.
func (d *doctor) remaining() {
	var missing []string // sources whose znodes do not exist, or are closed
	for _, f := range d.list {
		if kind, name, ok := strings.Cut(f.About, " "); ok && f.Check == "znode" && f.Level != LevelOK {
			name, _, _ = strings.Cut(name, " ")
			missing = append(missing, kind+"."+name)
		}
	}
	found := slices.Clone(d.list)
	for _, c := range d.conditions {
		sources := strings.Split(strings.TrimPrefix(c.Text, "waiting for "), ", ")
		known := slices.ContainsFunc(found, func(f Finding) bool {
			cause := f.Level == LevelFail && slices.Contains(causes[c.Code], f.Check)
			if f.Check == "server" {
				return cause && d.unreachable
			}
			return cause && slices.Contains(strings.Fields(f.About), c.Subject)
		})
		waiting := c.Code == condition.WaitingForSources.Code && !slices.ContainsFunc(sources, func(s string) bool { return !slices.Contains(missing, s) })
		if !known && !waiting {
			d.add(LevelWarn, "condition", strings.TrimSpace(c.Code+" "+c.Subject), fmt.Sprintf("%s (for %s)", c.Text, term.Age(c.Since)))
		}
	}
}

// dns queries the agent's DNS listener over UDP and TCP. A client uses TCP when an
// answer does not fit into UDP.
func (d *doctor) dns(ctx context.Context) {
	if !d.running || d.cfg.DNS == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	c := d.cfg.DNS
	err := dns.Ask(ctx, "udp", c.Listen, c.Domain)
	if err == nil {
		err = dns.Ask(ctx, "tcp", c.Listen, c.Domain)
	}
	d.result(LevelFail, "dns", c.Listen, err, "it answers for "+c.Domain+" over UDP and TCP",
		"the agent may run with other settings, something else may have the port, or a firewall drops it: ss -lntup")
}

func (d *doctor) destinations() {
	for _, b := range d.cfg.Bundles {
		for _, t := range b.Templates {
			about := "template " + b.Name
			if b.ForEach != nil {
				d.add(LevelOK, "file", about, "one for each element: known when it is rendered ("+t.DestinationText+")")
			} else if dest, err := t.Destination(nil); err != nil {
				d.add(LevelFail, "file", about, err.Error())
			} else {
				d.files = append(d.files, dest)
				d.destination(about, files.File{Destination: dest, InPlace: t.InPlace, Symlink: t.Symlink})
			}
		}
	}
}

func (d *doctor) destination(about string, f files.File) {
	about += " " + f.Destination
	dir := filepath.Dir(f.Destination)
	shared, err := files.Examine(f)
	_, missing := files.Look(f)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.add(LevelFail, "file", about, err.Error(), "mkdir -p "+dir+", for the user of the agent")
	case errors.Is(err, files.ErrNotRegular):
		d.add(LevelFail, "file", about, f.Destination+" is "+err.Error(), "move it away: the agent replaces regular files only")
	case err != nil:
		d.add(LevelFail, "file", about, err.Error())
	case f.InPlace && missing == nil:
		d.add(LevelOK, "file", about, "can be written")
	case shared && os.Geteuid() == 0:
		d.add(LevelWarn, "file", about, "another user can write to "+dir+": symbolic links there are refused, and that user can replace the file",
			"give the directory to root and mode 0755, or run the agent as the user who owns it")
	default:
		hint := fmt.Sprintf("the directory must be writable for uid %d; under systemd, ReadWritePaths must name it, too", os.Geteuid())
		d.result(LevelFail, "file", about, writable(dir), "can be written", hint)
	}
}

func (d *doctor) commands() {
	for _, b := range d.cfg.Bundles {
		about := "template " + b.Name
		if b.Check != nil {
			d.command("check", about, b.Check.Command)
			// The agent that runs knows when the check runs, else this program asks for its own user.
			when := cmp.Or(d.checks[b.Name], apply.CheckStatus(b.Check))
			switch text := "the check runs " + when; {
			case !strings.HasPrefix(when, "after"):
				d.add(LevelOK, "preview", about, text)
			case b.Check.At == "preview":
				d.add(LevelWarn, "preview", about, text, "the agent needs user namespaces, or the right to mount; see \"Checks\" in templates.md")
			default:
				d.add(LevelWarn, "preview", about, text, "without at = \"swapped\" the check runs before the swap, in a preview, and in votes")
			}
		}
		if b.Reload != nil {
			d.command("reload", about, b.Reload.Command)
			if b.Reload.Rolling != nil {
				d.command("post_check", about, b.Reload.Rolling.PostCheck)
			}
		}
	}
	for _, h := range d.cfg.Hooks {
		d.command("hook", h.Name, h.Command)
	}
	for _, e := range d.cfg.Execs {
		d.command("exec", e.Name, e.Command)
	}
}

func (d *doctor) command(what, about string, c command.Command) {
	if !c.Set() {
		return
	}
	args, err := c.Args(command.Vars{Staged: "staged", StagedDir: "/", Destination: "destination"})
	if err != nil || len(args) == 0 {
		d.add(LevelOK, what, about, "its arguments are known when it runs: "+c.Text)
		return
	}
	if what == "check" || what == "reload" {
		for _, v := range jobs(args) {
			if !slices.Contains(d.units, v) {
				d.units = append(d.units, v)
			}
		}
	}
	path, err := exec.LookPath(args[0])
	d.result(LevelFail, what, about, err, path+" can be executed", "is the program installed, and in the agent's PATH?")
}

func exists(path string) bool {
	_, err := files.Look(files.File{Destination: path, Symlink: files.SymlinkFollow})
	return err == nil
}
