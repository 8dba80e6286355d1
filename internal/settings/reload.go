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

type waitBlock struct {
	At  hcl.Range `hcl:",def_range"`
	Min duration  `hcl:"min" is:"duration" max:"10m" doc:"Apply once nothing has changed for this long."`
	Max duration  `hcl:"max,optional" is:"duration" max:"1h" doc:"Apply at the latest after this long; the default is ten times min."`
}

type checkBlock struct {
	At      hcl.Range  `hcl:",def_range"`
	Command expression `hcl:"command" is:"command" doc:"The command; it may use staged, staged_dir, destination and each."`
	When    text       `hcl:"at,optional" is:"string" default:"preview" enum:"preview|staged|swapped" doc:"preview runs the command before the swap, in a private view of the file system where the new files are in place. staged is for a command that tests one staged file: it is the default where the command names staged or staged_dir. swapped runs the command after the swap and puts the old files back when it fails; a vote cannot run it."`
	envArgs
	Timeout duration `hcl:"timeout,optional" is:"duration" default:"10s" min:"100ms" max:"1h" doc:"When the check is ended and counts as failed."`
}

type reloadBlock struct {
	At          hcl.Range  `hcl:",def_range"`
	Command     expression `hcl:"command" is:"command" doc:"The command; bundles with the same command share one run."`
	Timeout     duration   `hcl:"timeout,optional" is:"duration" default:"30s" min:"100ms" max:"1h" doc:"When the reload is ended and counts as failed."`
	MinInterval duration   `hcl:"min_interval,optional" is:"duration" default:"1s" max:"24h" doc:"Least time between two reloads; the first is at once."`
	Retry       number     `hcl:"retry,optional" is:"number" default:"3" min:"0" max:"20" doc:"How often a failed reload is tried again, with back-off, before on_failure."`
	OnFailure   text       `hcl:"on_failure,optional" is:"string" default:"restore" enum:"restore|keep" doc:"restore puts the old files back and reloads again; keep leaves the new ones."`
	Leader      expression `hcl:"leader,optional" is:"reference" doc:"The election whose leader runs it; without it every host does."`
	envArgs
	Rolling *rollingBlock `hcl:"rolling,block" doc:"Reload only a few hosts of the fleet at a time."`
	Verify  *verifyBlock  `hcl:"verify,block" doc:"Verify the reload by its new workers, not by the exit code."`
}

type rollingBlock struct {
	At        hcl.Range  `hcl:",def_range"`
	Permits   text       `hcl:"permits" is:"string" check:"permits" doc:"How many hosts at a time: a number (\"3\") or a share (\"10%\"). A host that has started less than 10 minutes ago, and has none of the files, writes them without waiting."`
	Pause     duration   `hcl:"pause,optional" is:"duration" default:"0s" max:"24h" doc:"How long a host keeps its permit after the reload."`
	PostCheck expression `hcl:"post_check,optional" is:"command" doc:"A command that must succeed after the pause, in the environment of the reload; when it fails the fleet is halted."`
}

type verifyBlock struct {
	At      hcl.Range `hcl:",def_range"`
	PIDFile text      `hcl:"pid_file" is:"path" doc:"The pid file of the master process. It must get as many new workers as it had, or some and none of the old."`
	Log     text      `hcl:"log,optional" is:"string" doc:"Where the program reports errors of its configuration: its error log, or \"journal:UNIT\". A line with [emerg] or [ALERT] after the reload ends the wait, and the condition has the line."`
	Timeout duration  `hcl:"timeout,optional" is:"duration" default:"10s" min:"100ms" max:"10m" doc:"How long to wait for the new workers; then the reload has failed."`
}

func (s *Settings) verifyLog(b *verifyBlock) string {
	unit, isJournal := strings.CutPrefix(b.Log.Value, "journal:")
	switch {
	case b.Log.Value == "" || filepath.IsAbs(b.Log.Value), isJournal && unit != "" && !strings.HasPrefix(unit, "-"):
	default:
		s.errorAt(b.Log.At, "Log is neither a file nor a journal", "log must be an absolute path, or \"journal:\" with the name of a unit, not %q.", b.Log.Value)
	}
	return b.Log.Value
}

// resolveWork resolves what a template and a bundle share: for_each, splay, wait,
// check, reload.
func (s *Settings) resolveWork(at hcl.Range, name string, b *workBlock) apply.Config {
	c := apply.Config{Name: name, Position: position(at), Splay: s.Config.Splay}
	if src := s.ref(b.ForEach, "groups", "group", "config"); src.Name != "" {
		c.ForEach = &src
	}
	if b.Splay.Set {
		c.Splay = b.Splay.Value
	}
	v := vars{staged: true, each: c.ForEach != nil}
	if w := b.Wait; w != nil {
		c.WaitMin, c.WaitMax = w.Min.Value, w.Max.Value
		if !w.Max.Set {
			c.WaitMax = 10 * c.WaitMin
		}
		if c.WaitMax < c.WaitMin {
			s.errorAt(w.Max.At, "Wait ends before it begins", "max is %s, which is less than min, %s.", c.WaitMax, c.WaitMin)
		}
	}
	if k := b.Check; k != nil {
		c.Check = &apply.CheckConfig{Command: s.command(k.Command, v), At: s.checkAt(k), Timeout: k.Timeout.Value}
		c.Check.Command.Env = s.env(k.envArgs)
	}
	if b.Reload != nil {
		c.Reload = s.resolveReload(b.Reload, name, v)
	}
	return c
}

// checkAt is when a check runs: before the swap in a preview, unless it names a staged path.
func (s *Settings) checkAt(k *checkBlock) string {
	if k.Command.Expression == nil {
		return k.When.Value
	}
	staged := slices.ContainsFunc(k.Command.Variables(), func(t hcl.Traversal) bool {
		return t.RootName() == "staged" || t.RootName() == "staged_dir"
	})
	switch {
	case staged && !k.When.Set:
		return "staged"
	case !staged && k.When.Value == "preview" && s.handsOff(k.Command):
		if k.When.Set {
			s.warnAt(k.When.At, "Not in the preview", "This program has another process run the check, which does not see the files of a preview: it would check the old files. Run the check itself, or set at = \"swapped\".")
		}
		return "swapped"
	case staged && k.When.Value == "preview":
		s.errorAt(k.When.At, "No staged file in a preview", "In a preview the new files are at their destinations: the command must name destination, not staged or staged_dir. Or remove at: the check then tests the staged files.")
	}
	return k.When.Value
}

// handsOff reports whether a command has another process do its work, such as a daemon or
// a program with rights of its own: that process is not in a preview.
func (s *Settings) handsOff(e expression) bool {
	list, diags := hcl.ExprList(e.Expression)
	if diags.HasErrors() || len(list) == 0 {
		return false
	}
	first, diags := list[0].Value(nil)
	if diags.HasErrors() || first.IsNull() || first.Type() != cty.String {
		return false
	}
	return slices.Contains(handOffs, filepath.Base(first.AsString()))
}

var handOffs = []string{
	"systemctl", "systemd-run", "service", "machinectl", "docker", "podman", "nerdctl", "crictl", "kubectl", "lxc", "incus",
	"ssh", "nsenter", "sudo", "doas", "su", "runuser", "pkexec",
}

func (s *Settings) resolveReload(b *reloadBlock, bundle string, v vars) *apply.ReloadConfig {
	c := &apply.ReloadConfig{
		Command: s.command(b.Command, v), Timeout: b.Timeout.Value, MinInterval: b.MinInterval.Value,
		Retry: b.Retry.Value, OnFailure: b.OnFailure.Value, Leader: s.ref(b.Leader, "election").Name,
	}
	c.Command.Env = s.env(b.envArgs)
	if b.Rolling != nil {
		if rolling.Reserved(bundle) {
			s.errorAt(b.Rolling.At, "Reserved name", "A bundle with a rolling reload must not end in -halt or -hosts, as %q does: ZooKeeper keeps the state of another bundle under that name. Rename it.", bundle)
		}
		c.Rolling = &apply.RollingConfig{
			Permits: b.Rolling.Permits.Value,
			Pause:   b.Rolling.Pause.Value, PostCheck: s.command(b.Rolling.PostCheck, v),
		}
		c.Rolling.PostCheck.Env = c.Command.Env
	}
	if b.Verify != nil {
		c.Verify = &apply.VerifyConfig{PIDFile: b.Verify.PIDFile.Value, Log: s.verifyLog(b.Verify), Timeout: b.Verify.Timeout.Value}
	}
	return c
}
