package settings

import (
	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/hook"
)

type hookBlock struct {
	Name      string         `hcl:"name,label"`
	At        hcl.Range      `hcl:",def_range"`
	Leader    hcl.Expression `hcl:"leader,optional" is:"reference" doc:"The election whose leader runs it, fenced by the term; without it every host does."`
	OnChange  hcl.Expression `hcl:"on_change,optional" is:"list of references" doc:"Configs, groups, sets of groups and elections whose changes run it: once for each content that is accepted and whose files are in place. A content that is replaced before may be skipped."`
	Schedule  hcl.Expression `hcl:"schedule,optional" is:"string" doc:"A cron line of five fields, with ~ for a value that is spread over the hooks by their names, @daily and its kind, and a leading CRON_TZ=. Without a zone it is in UTC with a leader, for hosts may differ, and else in the time zone of the host. A time of the day that the clocks skip or repeat runs once."`
	OnElected hcl.Expression `hcl:"on_elected,optional" is:"bool" default:"false" doc:"Run when this agent begins to lead."`
	OnDeposed hcl.Expression `hcl:"on_deposed,optional" is:"bool" default:"false" doc:"Run when this agent has ceased to lead."`
	Command   hcl.Expression `hcl:"command" is:"command" doc:"What runs: a list of arguments, without a shell."`
	Timeout   hcl.Expression `hcl:"timeout,optional" is:"duration" default:"5m" min:"100ms" max:"168h" doc:"When a run is ended with TERM, and KILL after a grace time."`
	Retries   hcl.Expression `hcl:"retries,optional" is:"number" default:"0" min:"0" max:"20" doc:"How often a failed run is tried again, with back-off."`
	Jitter    hcl.Expression `hcl:"jitter,optional" is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a run."`
	Overlap   hcl.Expression `hcl:"overlap,optional" is:"string" default:"forbid" enum:"forbid|allow|replace" doc:"What a trigger does while a run is under way: wait for its end, run beside it, or end it."`
	CatchUp   hcl.Expression `hcl:"catch_up,optional" is:"string" default:"latest" enum:"latest|all|skip" doc:"Which of the scheduled runs that were missed are made good."`
	envArgs
	Idempotent hcl.Expression `hcl:"idempotent,optional" is:"bool" default:"false" doc:"A run whose outcome is unknown after a failover may be run again."`
}

func (s *Settings) resolveHooks(blocks []*hookBlock) {
	for _, b := range blocks {
		s.Config.Hooks = append(s.Config.Hooks, s.resolveHook(b))
	}
}

func (s *Settings) resolveHook(b *hookBlock) hook.Config {
	r := s.read(b, b.At)
	h := hook.Config{
		Name: b.Name, OnChange: r.refs(&b.OnChange, "config", "group", "groups", "election"),
		Schedule: r.checked(&b.Schedule, "Invalid schedule", checkSchedule), OnElected: r.boolean(&b.OnElected), OnDeposed: r.boolean(&b.OnDeposed),
		Command: r.command(&b.Command, vars{}), Timeout: r.duration(&b.Timeout), Retries: r.integer(&b.Retries), Jitter: r.duration(&b.Jitter),
		Overlap: r.str(&b.Overlap), CatchUp: r.str(&b.CatchUp), Idempotent: r.boolean(&b.Idempotent),
	}
	h.Command.Env = r.env(&b.envArgs)
	leader, led := r.ref(&b.Leader, "election")
	h.Leader = leader.Name
	if (h.OnElected || h.OnDeposed) && !led && isNull(b.Leader) {
		s.errorAt(b.At, "Hook without an election", "on_elected and on_deposed need leader = election.NAME: whose leadership is meant?")
	}
	if !r.isSet(&b.Schedule) && isNull(b.OnChange) && !h.OnElected && !h.OnDeposed {
		s.warnAt(b.At, "Hook without a trigger", "Hook %q has none of on_change, schedule, on_elected and on_deposed; it runs only by \"zkagent hooks run %s\".", b.Name, b.Name)
	}
	if h.OnDeposed && led && h.Timeout > s.Config.ZooKeeper.Timeout && s.Config.ZooKeeper.Timeout > 0 && !isNull(b.Timeout) && !h.OnElected && !r.isSet(&b.Schedule) && isNull(b.OnChange) {
		s.warnAt(r.where(&b.Timeout), "Long on_deposed", "The next leader begins at most %s after this one lost its session; a longer run overlaps with it.", s.Config.ZooKeeper.Timeout)
	}
	return h
}

// position is file:line of a block.
func position(at hcl.Range) string { return at.Filename + ":" + itoa(at.Start.Line) }
