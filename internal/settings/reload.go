package settings

import (
	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/rolling"
)

type waitBlock struct {
	At  hcl.Range      `hcl:",def_range"`
	Min hcl.Expression `hcl:"min" is:"duration" max:"10m" doc:"Apply once nothing has changed for this long."`
	Max hcl.Expression `hcl:"max,optional" is:"duration" max:"1h" doc:"Apply at the latest after this long; the default is ten times min."`
}

type checkBlock struct {
	At      hcl.Range      `hcl:",def_range"`
	Command hcl.Expression `hcl:"command" is:"command" doc:"What is run; it may use staged, staged_dir, destination and each."`
	When    hcl.Expression `hcl:"at,optional" is:"string" default:"staged" enum:"staged|swapped" doc:"staged tests the new file before it is in place; swapped tests with it in place and puts the old one back when it fails, for files that cannot be tested alone."`
	envArgs
	Timeout hcl.Expression `hcl:"timeout,optional" is:"duration" default:"10s" min:"100ms" max:"1h" doc:"When the check is ended and counts as failed."`
}

type reloadBlock struct {
	At          hcl.Range      `hcl:",def_range"`
	Command     hcl.Expression `hcl:"command" is:"command" doc:"What is run; bundles with the same command share one run."`
	Timeout     hcl.Expression `hcl:"timeout,optional" is:"duration" default:"30s" min:"100ms" max:"1h" doc:"When the reload is ended and counts as failed."`
	MinInterval hcl.Expression `hcl:"min_interval,optional" is:"duration" default:"1s" max:"24h" doc:"Least time between two reloads; the first is at once."`
	Retry       hcl.Expression `hcl:"retry,optional" is:"number" default:"3" min:"0" max:"20" doc:"How often a failed reload is tried again, with back-off, before on_failure."`
	OnFailure   hcl.Expression `hcl:"on_failure,optional" is:"string" default:"restore" enum:"restore|keep" doc:"restore puts the old files back and reloads again; keep leaves the new ones."`
	Leader      hcl.Expression `hcl:"leader,optional" is:"reference" doc:"The election whose leader runs it; without it every host does."`
	envArgs
	Rolling *rollingBlock `hcl:"rolling,block" doc:"Reload only a few hosts of the fleet at a time."`
	Verify  *verifyBlock  `hcl:"verify,block" doc:"Do not believe the exit code: wait until the workers are new."`
}

type rollingBlock struct {
	At        hcl.Range      `hcl:",def_range"`
	Permits   hcl.Expression `hcl:"permits" is:"string" doc:"How many hosts at a time: a number (\"3\") or a share (\"10%\"). A host that has started less than 10 minutes ago, and has none of the files, writes them without waiting."`
	Pause     hcl.Expression `hcl:"pause,optional" is:"duration" default:"0s" max:"24h" doc:"How long a host keeps its permit after the reload."`
	PostCheck hcl.Expression `hcl:"post_check,optional" is:"command" doc:"A command that must succeed after the pause, in the environment of the reload; when it fails the fleet is halted."`
}

type verifyBlock struct {
	At      hcl.Range      `hcl:",def_range"`
	PIDFile hcl.Expression `hcl:"pid_file" is:"path" doc:"The pid file of the master process. It must get as many new workers as it had, or some and none of the former."`
	Timeout hcl.Expression `hcl:"timeout,optional" is:"duration" default:"10s" min:"100ms" max:"10m" doc:"How long to wait for the new workers; then the reload has failed."`
}

// resolveWork resolves what a template and a bundle share: for_each, splay, wait,
// check, reload.
func (s *Settings) resolveWork(r *reader, name string, b *workBlock) apply.Config {
	c := apply.Config{Name: name, Position: position(r.at), Splay: s.Config.Splay}
	if src, ok := r.ref(&b.ForEach, "groups", "group", "config"); ok {
		c.ForEach = &src
	}
	if r.isSet(&b.Splay) {
		c.Splay = r.duration(&b.Splay)
	}
	v := vars{staged: true, each: c.ForEach != nil}
	if w := b.Wait; w != nil {
		r := s.read(w, w.At)
		c.WaitMin, c.WaitMax = r.duration(&w.Min), r.duration(&w.Max)
		if !r.isSet(&w.Max) {
			c.WaitMax = 10 * c.WaitMin
		}
		if c.WaitMax < c.WaitMin {
			s.errorAt(r.where(&w.Max), "Wait ends before it begins", "max is %s, which is less than min, %s.", c.WaitMax, c.WaitMin)
		}
	}
	if k := b.Check; k != nil {
		r := s.read(k, k.At)
		c.Check = &apply.CheckConfig{Command: r.command(&k.Command, v), At: r.str(&k.When), Timeout: r.duration(&k.Timeout)}
		c.Check.Command.Env = r.env(&k.envArgs)
	}
	if b.Reload != nil {
		c.Reload = s.resolveReload(b.Reload, name, v)
	}
	return c
}

func (s *Settings) resolveReload(b *reloadBlock, bundle string, v vars) *apply.ReloadConfig {
	r := s.read(b, b.At)
	leader, _ := r.ref(&b.Leader, "election")
	c := &apply.ReloadConfig{
		Command: r.command(&b.Command, v), Timeout: r.duration(&b.Timeout), MinInterval: r.duration(&b.MinInterval),
		Retry: r.integer(&b.Retry), OnFailure: r.str(&b.OnFailure), Leader: leader.Name,
	}
	c.Command.Env = r.env(&b.envArgs)
	if b.Rolling != nil {
		rr := s.read(b.Rolling, b.Rolling.At)
		if rolling.Reserved(bundle) {
			s.errorAt(b.Rolling.At, "Reserved name", "A bundle with a rolling reload must not end in -halt or -hosts, as %q does: ZooKeeper keeps the state of another bundle under that name. Rename it.", bundle)
		}
		c.Rolling = &apply.RollingConfig{
			Permits: rr.checked(&b.Rolling.Permits, "Invalid permits", checkPermits),
			Pause:   rr.duration(&b.Rolling.Pause), PostCheck: rr.command(&b.Rolling.PostCheck, v),
		}
		c.Rolling.PostCheck.Env = c.Command.Env
	}
	if b.Verify != nil {
		vr := s.read(b.Verify, b.Verify.At)
		c.VerifyPIDFile, c.VerifyTimeout = vr.file(&b.Verify.PIDFile), vr.duration(&b.Verify.Timeout)
	}
	return c
}
