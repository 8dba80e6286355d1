package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// unitVerb is a systemctl call of the settings.
type unitVerb struct{ verb, unit string }

// jobs returns the systemd jobs that a command line starts, also by zkagent-check.
func jobs(args []string) []unitVerb {
	if len(args) < 2 {
		return nil
	}
	switch filepath.Base(args[0]) {
	case "zkagent-check":
		return []unitVerb{{"start", "zkagent-check@" + args[1] + ".service"}}
	case "systemctl":
	default:
		return nil
	}
	var list []unitVerb
	verb := ""
	for _, a := range args[1:] {
		switch {
		case strings.HasPrefix(a, "-"):
		case verb == "":
			verb = a
		default:
			if !strings.Contains(a, ".") {
				a += ".service"
			}
			list = append(list, unitVerb{verb, a})
		}
	}
	return list
}

const unitProperties = "LoadState,ActiveState,ProtectSystem,ReadWritePaths,User,AllowIsolate"

func (d *doctor) systemd(ctx context.Context) {
	if !exists("/run/systemd/system") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*d.wait())
	defer cancel()
	props, err := unitShow(ctx, "zkagent.service")
	if err != nil {
		d.add(LevelWarn, "systemd", "zkagent.service", err.Error())
		return
	}
	if props["LoadState"] != "loaded" {
		d.add(LevelOK, "systemd", "zkagent.service", "not installed")
		return
	}
	d.add(LevelOK, "systemd", "zkagent.service", fmt.Sprintf("%s, user %s, ProtectSystem=%s", props["ActiveState"], props["User"], props["ProtectSystem"]))
	if props["ProtectSystem"] == "strict" {
		writable := append(strings.Fields(props["ReadWritePaths"]), "/var/lib/zkagent", "/run/zkagent")
		for _, dest := range d.files {
			if within(dest, writable) {
				d.add(LevelOK, "sandbox", dest, "the unit may write there")
				continue
			}
			d.add(LevelFail, "sandbox", dest, "the unit may not write there", "systemctl edit zkagent, with: [Service] ReadWritePaths="+filepath.Dir(dest))
		}
	}
	as := d.unitUser(props["User"])
	for _, v := range d.units {
		p, err := unitShow(ctx, v.unit)
		if err == nil && p["LoadState"] != "loaded" {
			err = fmt.Errorf("the unit is %s", p["LoadState"])
		}
		if d.result(LevelFail, "unit", v.unit, err, "known to systemd") && as != nil && p["AllowIsolate"] != "yes" {
			d.polkit(ctx, v, as)
		}
	}
}

// unitUser returns the user to ask polkit for. It is nil when the agent runs as
// root, which needs no permission, or when we run as another user than the agent.
func (d *doctor) unitUser(name string) *syscall.SysProcAttr {
	if name == "" || name == "root" {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		d.add(LevelFail, "systemd", "zkagent.service", err.Error())
		return nil
	}
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	switch {
	case uerr != nil || gerr != nil:
		return nil
	case strconv.Itoa(os.Geteuid()) == u.Uid:
		return &syscall.SysProcAttr{}
	case os.Geteuid() != 0:
		d.add(LevelWarn, "systemd", "zkagent.service", "you are not the user of the agent: findings about files and permissions are about yours")
	default:
		d.add(LevelWarn, "systemd", "zkagent.service", "you are root: that a file can be written does not show that the agent can")
	}
	d.hint("runuser -u %s -- zkagent doctor", name)
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
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

// polkit tests the permission for a job without running it. As the agent's user, it
// requests the job with the mode "isolate". systemd asks polkit first and then
// refuses the mode, because only the start of a unit with AllowIsolate=yes may use
// it. So systemd starts and reloads nothing.
func (d *doctor) polkit(ctx context.Context, v unitVerb, as *syscall.SysProcAttr) {
	cmd := exec.CommandContext(ctx, "systemctl", "--no-ask-password", "--job-mode=isolate", v.verb, "--", v.unit) //nolint:gosec // the settings' own words, as arguments.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = as
	out, err := cmd.CombinedOutput()
	about, text := v.verb+" "+v.unit, strings.TrimSpace(string(out))
	switch lower := strings.ToLower(text); {
	case strings.Contains(lower, "isolate"):
		d.add(LevelOK, "polkit", about, "allowed for the user of the agent")
	case strings.Contains(lower, "denied"), strings.Contains(lower, "authentication"), strings.Contains(lower, "not permitted"):
		d.add(LevelFail, "polkit", about, "not allowed for the user of the agent: "+firstLine(text), "a rule must allow it: see /usr/share/polkit-1/rules.d/50-zkagent.rules; is polkitd installed?")
	case err != nil:
		d.add(LevelWarn, "polkit", about, "unknown: "+firstLine(errors.Join(err, errors.New(text)).Error()))
	default:
		d.add(LevelWarn, "polkit", about, "unknown: systemctl did not say")
	}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

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
