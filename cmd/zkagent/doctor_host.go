package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/zkagent/zkagent/agent"
)

// destinations finds out whether each file can be written.
func (d *doctor) destinations() {
	for _, b := range d.cfg.Bundles {
		for _, t := range b.Templates {
			about := "template " + b.Name
			if b.ForEach != nil {
				d.add(levelOK, "file", about, "one for each element: known when it is rendered ("+t.DestinationText+")")
				continue
			}
			dest, err := t.Destination(nil)
			if err != nil {
				d.add(levelFail, "file", about, err.Error())
				continue
			}
			d.destination(about, dest, t.InPlace)
		}
	}
}

func (d *doctor) destination(about, dest string, inPlace bool) {
	about += " " + dest
	dir := filepath.Dir(dest)
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		d.add(levelFail, "file", about, err.Error())
		d.hint("mkdir -p %s, for the user of the agent", dir)
		return
	case !info.IsDir():
		d.add(levelFail, "file", about, dir+" is not a directory")
		return
	}
	if inPlace {
		f, err := os.OpenFile(dest, os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			d.result(levelFail, "file", about, err, "can be written")
			return
		}
	}
	if !d.result(levelFail, "file", about, writable(dir), "can be written") {
		d.hint("the directory must be writable for uid %d; under systemd, ReadWritePaths must name it, too", os.Geteuid())
	}
}

// commands finds out whether the programs of checks, reloads and hooks can be
// executed.
func (d *doctor) commands() {
	for _, b := range d.cfg.Bundles {
		about := "template " + b.Name
		if b.Check != nil {
			d.command("check", about, b.Check.Command)
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

// units are what systemctl is asked for by the settings.
func (d *doctor) units() []string {
	var list []string
	for _, b := range d.cfg.Bundles {
		for _, c := range commandsOf(b) {
			args, err := c.Args(agent.Vars{})
			if err != nil || len(args) < 3 || filepath.Base(args[0]) != "systemctl" {
				continue
			}
			for _, a := range args[2:] {
				if !strings.HasPrefix(a, "-") {
					list = append(list, a)
				}
			}
		}
	}
	return sorted(list)
}

func commandsOf(b agent.BundleConfig) []agent.Command {
	var list []agent.Command
	if b.Check != nil && b.Check.Command.Set() {
		list = append(list, b.Check.Command)
	}
	if b.Reload != nil && b.Reload.Command.Set() {
		list = append(list, b.Reload.Command)
	}
	return list
}

func (d *doctor) command(what, about string, c agent.Command) {
	if !c.Set() {
		return
	}
	args, err := c.Args(agent.Vars{Staged: "staged", StagedDir: "/", Destination: "destination"})
	if err != nil || len(args) == 0 {
		d.add(levelOK, what, about, "its arguments are known when it runs: "+c.Text)
		return
	}
	path, err := exec.LookPath(args[0])
	if !d.result(levelFail, what, about, err, path+" can be executed") {
		d.hint("is the program installed, and in the agent's PATH?")
	}
}

// unitProperties are what matters of the sandbox of the unit.
const unitProperties = "LoadState,ActiveState,NoNewPrivileges,ProtectSystem,ReadWritePaths,User"

// systemd looks at the unit of the agent and at polkit, on a host that
// systemd runs.
func (d *doctor) systemd(ctx context.Context) {
	if !exists("/run/systemd/system") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doctorWait)
	defer cancel()
	props, err := unitShow(ctx, "zkagent.service")
	if err != nil {
		d.add(levelWarn, "systemd", "zkagent.service", err.Error())
		return
	}
	if props["LoadState"] != "loaded" {
		d.add(levelOK, "systemd", "zkagent.service", "not installed")
		return
	}
	d.add(levelOK, "systemd", "zkagent.service", fmt.Sprintf("%s, user %s, ProtectSystem=%s", props["ActiveState"], props["User"], props["ProtectSystem"]))
	if props["ProtectSystem"] == "strict" {
		d.sandbox(strings.Fields(props["ReadWritePaths"]))
	}
	units := d.units()
	for _, unit := range units {
		p, err := unitShow(ctx, unit)
		if err == nil && p["LoadState"] != "loaded" {
			err = fmt.Errorf("the unit is %s", p["LoadState"])
		}
		d.result(levelFail, "unit", unit, err, "known to systemd")
	}
	if len(units) > 0 && props["User"] != "" && props["User"] != "root" {
		d.polkit(units)
	}
}

// sandbox finds destinations that the unit may not write.
func (d *doctor) sandbox(writable []string) {
	for _, b := range d.cfg.Bundles {
		for _, t := range b.Templates {
			if b.ForEach != nil {
				continue
			}
			dest, err := t.Destination(nil)
			if err != nil || within(dest, append(writable, "/var/lib/zkagent", "/run/zkagent")) {
				continue
			}
			d.add(levelFail, "sandbox", dest, "the unit may not write there")
			d.hint("systemctl edit zkagent, with: [Service] ReadWritePaths=%s", filepath.Dir(dest))
		}
	}
}

// within reports whether a path is one of the directories or below one.
func within(path string, dirs []string) bool {
	for _, dir := range dirs {
		dir = strings.TrimLeft(dir, "-+")
		if rel, err := filepath.Rel(dir, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return true
		}
	}
	return false
}

// polkitRules is where the rule that allows the agent its reloads may be.
var polkitRules = []string{"/etc/polkit-1/rules.d", "/usr/local/share/polkit-1/rules.d", "/usr/share/polkit-1/rules.d"}

func (d *doctor) polkit(units []string) {
	var rules strings.Builder
	for _, dir := range polkitRules {
		files, _ := filepath.Glob(filepath.Join(dir, "*.rules"))
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err == nil && strings.Contains(string(data), "zkagent") {
				rules.Write(data)
			}
		}
	}
	for _, unit := range units {
		if strings.Contains(rules.String(), unit) {
			d.add(levelOK, "polkit", unit, "a rule names the agent and the unit")
			continue
		}
		d.add(levelWarn, "polkit", unit, "no rule that can be read lets the agent manage the unit")
		d.hint("see /usr/share/polkit-1/rules.d/50-zkagent.rules for the form of one")
	}
}

// unitShow asks systemd about a unit.
func unitShow(ctx context.Context, unit string) (map[string]string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property="+unitProperties, "--", unit).Output() //nolint:gosec // the unit is an argument.
	if err != nil {
		return nil, fmt.Errorf("systemctl show: %w", err)
	}
	props := map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		props[k] = v
	}
	return props, nil
}
