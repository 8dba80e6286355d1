package doctor

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/files"
)

// destinations finds out whether each file can be written.
func (d *doctor) destinations() {
	for _, b := range d.cfg.Bundles {
		for _, t := range b.Templates {
			about := "template " + b.Name
			if b.ForEach != nil {
				d.add(LevelOK, "file", about, "one for each element: known when it is rendered ("+t.DestinationText+")")
			} else if dest, err := t.Destination(nil); err != nil {
				d.add(LevelFail, "file", about, err.Error())
			} else {
				d.destination(about, files.File{Destination: dest, InPlace: t.InPlace, Symlink: t.Symlink})
			}
		}
	}
}

func (d *doctor) destination(about string, f files.File) {
	dest := f.Destination
	about += " " + dest
	dir := filepath.Dir(dest)
	shared, err := files.Examine(f)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.add(LevelFail, "file", about, err.Error())
		d.hint("mkdir -p %s, for the user of the agent", dir)
		return
	case errors.Is(err, files.ErrNotRegular):
		d.add(LevelFail, "file", about, dest+" is "+err.Error(), "move it away: the agent replaces regular files only")
		return
	case err != nil:
		d.add(LevelFail, "file", about, err.Error())
		return
	}
	if f.InPlace {
		if _, err := files.Look(f); err == nil {
			d.add(LevelOK, "file", about, "can be written")
			return
		}
	}
	if shared && os.Geteuid() == 0 {
		d.add(LevelWarn, "file", about, "another user can write to "+dir+": symbolic links there are refused, and that user can replace the file")
		d.hint("give the directory to root and mode 0755, or run the agent as the user who owns it")
		return
	}
	if !d.result(LevelFail, "file", about, writable(dir), "can be written") {
		d.hint("the directory must be writable for uid %d; under systemd, ReadWritePaths must name it, too", os.Geteuid())
	}
}

func (d *doctor) commands() {
	for _, b := range d.cfg.Bundles {
		about := "template " + b.Name
		if b.Check != nil {
			d.command("check", about, b.Check.Command)
			d.preview(about, b)
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

// preview finds out when the check of a template runs: the agent that runs knows, else this
// program asks for its own user.
func (d *doctor) preview(about string, b apply.Config) {
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

func (d *doctor) command(what, about string, c command.Command) {
	if !c.Set() {
		return
	}
	args, err := c.Args(command.Vars{Staged: "staged", StagedDir: "/", Destination: "destination"})
	if err != nil || len(args) == 0 {
		d.add(LevelOK, what, about, "its arguments are known when it runs: "+c.Text)
		return
	}
	path, err := exec.LookPath(args[0])
	if !d.result(LevelFail, what, about, err, path+" can be executed") {
		d.hint("is the program installed, and in the agent's PATH?")
	}
}

func exists(path string) bool {
	_, err := files.Look(files.File{Destination: path, Symlink: files.SymlinkFollow})
	return err == nil
}
