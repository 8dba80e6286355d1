package settings

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/rolling"
)

// resolveWork reads what a template and a bundle share: for_each, splay, wait, check, reload.
func (s *Settings) resolveWork(b *decoder, templates []apply.FileConfig) {
	c := apply.Config{Name: b.label, Position: position(b.at), Splay: s.Config.Splay, Templates: templates}
	if src := s.ref(b.expression("for_each,optional", `is:"reference" doc:"One file, or the whole bundle, for each group of a set (groups.NAME), member of a group (group.NAME), or key of a config (config.NAME). A file that is no longer wanted is removed."`), "groups", "group", "config"); src.Name != "" {
		c.ForEach = &src
	}
	if splay := b.duration("splay,optional", `is:"duration" max:"1h" doc:"Largest random delay before it is applied; the default is the splay of the agent block."`); b.set("splay") {
		c.Splay = splay
	}
	v := vars{staged: true, each: c.ForEach != nil}
	for _, w := range b.once("wait", "Wait for quiet before applying. Without the block the agent applies a change at once, and applies changes that arrive meanwhile together.") {
		c.WaitMin = w.duration("min", `is:"duration" max:"10m" doc:"Apply once nothing has changed for this long."`)
		most := w.duration("max,optional", `is:"duration" max:"1h" doc:"Apply at the latest after this long; the default is ten times min."`)
		if c.WaitMax = most; !w.set("max") {
			c.WaitMax = 10 * c.WaitMin
		}
		if c.WaitMax < c.WaitMin {
			s.errorAt(w.place("max"), "Wait ends before it begins", "max is %s, which is less than min, %s.", c.WaitMax, c.WaitMin)
		}
	}
	for _, k := range b.once("check", "A command that must succeed with the new files, all of a bundle at once.") {
		run := k.expression("command", `is:"command" doc:"The command; it may use staged, staged_dir, destination and each."`)
		c.Check = &apply.CheckConfig{Command: s.command(run, v), At: s.checkAt(k, run, k.text("at,optional", `is:"string" default:"preview" enum:"preview|staged|swapped" doc:"preview runs the command before the swap, in a private view of the file system where the new files are in place. staged is for a command that tests one staged file: it is the default where the command names staged or staged_dir. swapped runs the command after the swap and puts the old files back when it fails; a vote cannot run it."`))}
		c.Check.Command.Env, _ = s.env(k)
		c.Check.Timeout = k.duration("timeout,optional", `is:"duration" default:"10s" min:"100ms" max:"1h" doc:"When the check is ended and counts as failed."`)
	}
	for _, r := range b.once("reload", "The command that makes the program use the new files, once for all files of a bundle.") {
		c.Reload = s.resolveReload(r, c.Name, v)
	}
	s.Config.Bundles = append(s.Config.Bundles, c)
}

// checkAt is when a check runs: before the swap in a preview, unless it names a staged path.
func (s *Settings) checkAt(k *decoder, run expression, when string) string {
	if run.Expression == nil {
		return when
	}
	staged := slices.ContainsFunc(run.Variables(), func(t hcl.Traversal) bool {
		return t.RootName() == "staged" || t.RootName() == "staged_dir"
	})
	switch {
	case staged && !k.set("at"):
		return "staged"
	case !staged && when == "preview" && s.handsOff(run):
		if k.set("at") {
			s.warnAt(k.place("at"), "Not in the preview", "This program has another process run the check, which does not see the files of a preview: it would check the old files. Run the check itself, or set at = \"swapped\".")
		}
		return "swapped"
	case staged && when == "preview":
		s.errorAt(k.place("at"), "No staged file in a preview", "In a preview the new files are at their destinations: the command must name destination, not staged or staged_dir. Or remove at: the check then tests the staged files.")
	}
	return when
}

// handsOff reports whether a process that is not in the preview does the command's work.
func (s *Settings) handsOff(e expression) bool {
	list, _ := hcl.ExprList(e.Expression)
	if len(list) == 0 {
		return false
	}
	first, diags := list[0].Value(nil)
	return !diags.HasErrors() && !first.IsNull() && first.Type() == cty.String && slices.Contains(handOffs, filepath.Base(first.AsString()))
}

var handOffs = []string{
	"systemctl", "systemd-run", "service", "machinectl", "docker", "podman", "nerdctl", "crictl", "kubectl", "lxc", "incus",
	"ssh", "nsenter", "sudo", "doas", "su", "runuser", "pkexec",
}

func (s *Settings) resolveReload(b *decoder, bundle string, v vars) *apply.ReloadConfig {
	c := &apply.ReloadConfig{
		Command:     s.command(b.expression("command", `is:"command" doc:"The command; bundles with the same command share one run."`), v),
		Timeout:     b.duration("timeout,optional", `is:"duration" default:"30s" min:"100ms" max:"1h" doc:"When the reload is ended and counts as failed."`),
		MinInterval: b.duration("min_interval,optional", `is:"duration" default:"1s" max:"24h" doc:"Least time between two reloads; the first is at once."`),
		Retry:       b.number("retry,optional", `is:"number" default:"3" min:"0" max:"20" doc:"How often a failed reload is tried again, with back-off, before on_failure."`),
		OnFailure:   b.text("on_failure,optional", `is:"string" default:"restore" enum:"restore|keep" doc:"restore puts the old files back and reloads again; keep leaves the new ones."`),
		Leader:      s.ref(b.expression("leader,optional", `is:"reference" doc:"The election whose leader runs it; without it every host does."`), "election").Name,
	}
	c.Command.Env, _ = s.env(b)
	for _, r := range b.once("rolling", "Reload only a few hosts of the fleet at a time.") {
		if rolling.Reserved(bundle) {
			s.errorAt(r.at, "Reserved name", "A bundle with a rolling reload must not end in -halt or -hosts, as %q does: ZooKeeper keeps the state of another bundle under that name. Rename it.", bundle)
		}
		c.Rolling = &apply.RollingConfig{
			Permits:   r.text("permits", `is:"string" check:"permits" doc:"How many hosts at a time: a number (\"3\") or a share (\"10%\"). A host that has started less than 10 minutes ago, and has none of the files, writes them without waiting."`),
			Pause:     r.duration("pause,optional", `is:"duration" default:"0s" max:"24h" doc:"How long a host keeps its permit after the reload."`),
			PostCheck: s.command(r.expression("post_check,optional", `is:"command" doc:"A command that must succeed after the pause, in the environment of the reload; when it fails the fleet is halted."`), v),
		}
		c.Rolling.PostCheck.Env = c.Command.Env
	}
	for _, y := range b.once("verify", "Verify the reload by its new workers, not by the exit code.") {
		c.Verify = &apply.VerifyConfig{
			PIDFile: y.text("pid_file", `is:"path" doc:"The pid file of the master process. It must get as many new workers as it had, or some and none of the old."`),
			Log:     y.text("log,optional", `is:"string" doc:"Where the program reports errors of its configuration: its error log, or \"journal:UNIT\". A line with [emerg] or [ALERT] after the reload ends the wait, and the condition has the line."`),
			Timeout: y.duration("timeout,optional", `is:"duration" default:"10s" min:"100ms" max:"10m" doc:"How long to wait for the new workers; then the reload has failed."`),
		}
		log := c.Verify.Log
		if unit, isJournal := strings.CutPrefix(log, "journal:"); log != "" && !filepath.IsAbs(log) && (!isJournal || unit == "" || strings.HasPrefix(unit, "-")) {
			s.errorAt(y.place("log"), "Log is neither a file nor a journal", "log must be an absolute path, or \"journal:\" with the name of a unit, not %q.", log)
		}
	}
	return c
}
