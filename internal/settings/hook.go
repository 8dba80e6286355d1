package settings

import (
	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/hook"
)

type hookBlock struct {
	Name      string     `hcl:"name,label"`
	At        hcl.Range  `hcl:",def_range"`
	Leader    expression `hcl:"leader,optional" is:"reference" doc:"The election whose leader runs it, fenced by the term; without it every host does."`
	OnChange  expression `hcl:"on_change,optional" is:"list of references" doc:"Configs, groups, sets of groups and elections whose changes run it: once for each content that is accepted and whose files are in place. A content that is replaced before may be skipped."`
	Schedule  text       `hcl:"schedule,optional" is:"string" check:"schedule" doc:"A cron line of five fields, with ~ for a value that is spread over the hooks by their names, @daily and its kind, and a leading CRON_TZ=. Without a zone it is in UTC with a leader, for hosts may differ, and else in the time zone of the host. A time of the day that the clocks skip or repeat runs once."`
	OnElected boolean    `hcl:"on_elected,optional" is:"bool" default:"false" doc:"Run when this agent begins to lead."`
	OnDeposed boolean    `hcl:"on_deposed,optional" is:"bool" default:"false" doc:"Run when this agent has ceased to lead."`
	Command   expression `hcl:"command" is:"command" doc:"The command: a list of arguments, without a shell."`
	Timeout   duration   `hcl:"timeout,optional" is:"duration" default:"5m" min:"100ms" max:"168h" doc:"When a run is ended with TERM, and KILL after a grace time."`
	Retries   number     `hcl:"retries,optional" is:"number" default:"0" min:"0" max:"20" doc:"How often a failed run is tried again, with back-off."`
	Jitter    duration   `hcl:"jitter,optional" is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a run."`
	Overlap   text       `hcl:"overlap,optional" is:"string" default:"forbid" enum:"forbid|allow|replace" doc:"The reaction to a trigger while a run is under way: wait for its end, run at the same time, or end it."`
	CatchUp   text       `hcl:"catch_up,optional" is:"string" default:"latest" enum:"latest|all|skip" doc:"Which of the scheduled runs that were missed the job still runs."`
	envArgs
	Idempotent boolean `hcl:"idempotent,optional" is:"bool" default:"false" doc:"A run whose outcome is unknown after a failover may be run again."`
}

func (s *Settings) resolveHooks(blocks []*hookBlock) {
	for _, b := range blocks {
		h := hook.Config{
			Name: b.Name, OnChange: s.refs(b.OnChange, "config", "group", "groups", "election"),
			Schedule: b.Schedule.Value, OnElected: b.OnElected.Value, OnDeposed: b.OnDeposed.Value,
			Command: s.command(b.Command, vars{}), Timeout: b.Timeout.Value, Retries: b.Retries.Value, Jitter: b.Jitter.Value,
			Overlap: b.Overlap.Value, CatchUp: b.CatchUp.Value, Idempotent: b.Idempotent.Value,
			Leader: s.ref(b.Leader, "election").Name,
		}
		h.Command.Env = s.env(b.envArgs)
		if (h.OnElected || h.OnDeposed) && !b.Leader.Set {
			s.errorAt(b.At, "Hook without an election", "on_elected and on_deposed need leader = election.NAME: whose leadership is meant?")
		}
		if !b.Schedule.Set && !b.OnChange.Set && !h.OnElected && !h.OnDeposed {
			s.warnAt(b.At, "Hook without a trigger", "Hook %q has none of on_change, schedule, on_elected and on_deposed; it runs only by \"zkagent hooks run %s\".", b.Name, b.Name)
		}
		if h.OnDeposed && h.Leader != "" && h.Timeout > s.Config.ZooKeeper.Timeout && s.Config.ZooKeeper.Timeout > 0 && b.Timeout.Set && !h.OnElected && !b.Schedule.Set && !b.OnChange.Set {
			s.warnAt(b.Timeout.At, "Long on_deposed", "The next leader begins at most %s after this one lost its session; a longer run overlaps with it.", s.Config.ZooKeeper.Timeout)
		}
		s.Config.Hooks = append(s.Config.Hooks, h)
	}
}
