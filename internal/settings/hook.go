package settings

import (
	"github.com/zkagent/zkagent/internal/hook"
)

func (s *Settings) resolveHooks(d *decoder) {
	for _, b := range d.blocks("hook", "name", "A command that runs on a change, on a schedule, or with leadership.") {
		leader := b.expression("leader,optional", `is:"reference" doc:"The election whose leader runs it, fenced by the term; without it every host does."`)
		onChange := b.expression("on_change,optional", `is:"list of references" doc:"Configs, groups, sets of groups and elections whose changes run it: once for each content that is accepted and whose files are in place. A content that is replaced before may be skipped."`)
		h := hook.Config{
			Name: b.label, Leader: s.ref(leader, "election").Name, Schedule: b.text("schedule,optional", `is:"string" check:"schedule" doc:"A cron line of five fields, with ~ for a value that is spread over the hooks by their names, @daily and its kind, and a leading CRON_TZ=. Without a zone it is in UTC with a leader, for hosts may differ, and else in the time zone of the host. A time of the day that the clocks skip or repeat runs once."`),
			OnChange:  s.refs(onChange, "config", "group", "groups", "election"),
			OnElected: b.boolean("on_elected,optional", `is:"bool" default:"false" doc:"Run when this agent begins to lead."`),
			OnDeposed: b.boolean("on_deposed,optional", `is:"bool" default:"false" doc:"Run when this agent has ceased to lead."`),
			Command:   s.command(b.expression("command", `is:"command" doc:"The command: a list of arguments, without a shell."`), vars{}),
		}
		h.Timeout = b.duration("timeout,optional", `is:"duration" default:"5m" min:"100ms" max:"168h" doc:"When a run is ended with TERM, and KILL after a grace time."`)
		h.Retries = b.number("retries,optional", `is:"number" default:"0" min:"0" max:"20" doc:"How often a failed run is tried again, with back-off."`)
		h.Jitter = b.duration("jitter,optional", `is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a run."`)
		h.Overlap = b.text("overlap,optional", `is:"string" default:"forbid" enum:"forbid|allow|replace" doc:"The reaction to a trigger while a run is under way: wait for its end, run at the same time, or end it."`)
		h.CatchUp = b.text("catch_up,optional", `is:"string" default:"latest" enum:"latest|all|skip" doc:"Which of the scheduled runs that were missed the job still runs."`)
		h.Command.Env, _ = s.env(b)
		h.Idempotent = b.boolean("idempotent,optional", `is:"bool" default:"false" doc:"A run whose outcome is unknown after a failover may be run again."`)
		if (h.OnElected || h.OnDeposed) && !leader.Set {
			s.errorAt(b.at, "Hook without an election", "on_elected and on_deposed need leader = election.NAME: whose leadership is meant?")
		}
		if !b.set("schedule") && !onChange.Set && !h.OnElected && !h.OnDeposed {
			s.warnAt(b.at, "Hook without a trigger", "Hook %q has none of on_change, schedule, on_elected and on_deposed; it runs only by \"zkagent hooks run %s\".", h.Name, h.Name)
		}
		if h.OnDeposed && h.Leader != "" && h.Timeout > s.Config.ZooKeeper.Timeout && s.Config.ZooKeeper.Timeout > 0 && b.set("timeout") && !h.OnElected && !b.set("schedule") && !onChange.Set {
			s.warnAt(b.place("timeout"), "Long on_deposed", "The next leader begins at most %s after this one lost its session; a longer run overlaps with it.", s.Config.ZooKeeper.Timeout)
		}
		s.Config.Hooks = append(s.Config.Hooks, h)
	}
}
