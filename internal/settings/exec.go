package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/proc"
)

func (s *Settings) resolveExecs(d *decoder) {
	var first hcl.Range
	for _, b := range d.blocks("exec", "name", "A program that the agent starts once its files are rendered, and supervises.") {
		if len(s.Config.Execs) == 1 {
			s.errorAt(b.at, "More than one exec block", "The agent ends with the exit code of its program, so there can be one only; another is at %s. Run further agents for further programs.", place(first))
		}
		first = b.at
		c := agent.ExecConfig{Name: b.label, Command: s.command(b.expression("command", `is:"command" doc:"The program: a list of arguments, without a shell. When it ends by itself the agent ends with its exit code."`), vars{})}
		var own map[string]string
		c.Command.Env, own = s.env(b)
		c.EnvFrom = b.textMap("env_from,optional", `is:"map of strings" doc:"Environment variables from keys of config trees: NAME = \"config/key\". They override the variables of env. A variable that can make a program run code, such as PATH or LD_PRELOAD, needs allow_env."`)
		allow := b.list("allow_env,optional", `is:"list of strings" doc:"Variables of env_from that a key may set although they let the writer of the key run code: PATH, LD_PRELOAD, BASH_ENV, ..."`)
		for _, src := range s.refs(b.expression("after,optional", `is:"list of references" doc:"Templates and bundles that must have been rendered before it starts; the default is all."`), "template", "bundle") {
			c.After = append(c.After, src.Name)
		}
		c.OnChange = b.text("on_change,optional", `is:"string" default:"restart" enum:"restart|signal|ignore" doc:"The reaction to a change of its files or variables. Only a restart can pass on a change of a variable."`)
		c.Signal = b.text("signal,optional", `is:"signal" default:"SIGHUP" doc:"The signal that on_change = \"signal\" sends."`)
		c.Splay = b.duration("splay,optional", `is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a restart or signal."`)
		c.KillSignal = b.text("kill_signal,optional", `is:"signal" default:"SIGTERM" doc:"The signal that stops it; for nginx use SIGQUIT."`)
		c.KillTimeout = b.duration("kill_timeout,optional", `is:"duration" default:"30s" min:"100ms" max:"1h" doc:"Time between kill_signal and KILL when it is stopped."`)
		for _, name := range sortedKeys(c.EnvFrom) {
			if err := s.checkEnvFrom(name, c.EnvFrom[name]); err != nil {
				s.errorAt(b.place("env_from"), "Invalid environment variable", "%s", sentence(err.Error()))
			}
			if proc.RunsCode(name) && !slices.Contains(allow, name) {
				s.errorAt(b.place("env_from"), "Variable runs code", "The variable %s lets the writer of the key %q run code; allow_env = [%q] permits it.", name, c.EnvFrom[name], name)
			}
		}
		for _, name := range allow {
			if _, ok := c.EnvFrom[name]; !ok {
				s.errorAt(b.place("allow_env"), "Variable is not used", "%q is not one of env_from.", name)
			}
		}
		for name, value := range own {
			if s.checkEnvFrom(name, value) == nil {
				s.warnAt(b.place("env"), "Value looks like a key", "%s = %q is taken as it is. If the key of a config is meant, write it in env_from.", name, value)
			}
		}
		if c.OnChange != "signal" && b.set("signal") {
			s.errorAt(b.place("signal"), "Signal is not used", "\"signal\" has a meaning only with on_change = \"signal\".")
		}
		s.Config.Execs = append(s.Config.Execs, c)
	}
}

func (s *Settings) checkEnvFrom(name, key string) error {
	if err := checkVariable(name); err != nil {
		return err
	}
	cfg, rest, ok := strings.Cut(key, "/")
	if !ok || rest == "" {
		return fmt.Errorf("%s = %q: write the config's name, a slash and the key, as in \"web/timeout\"", name, key)
	}
	if _, ok := s.find("config", cfg); !ok {
		return fmt.Errorf("%s = %q: there is no config named %q.%s", name, key, cfg, s.nearest("config", cfg))
	}
	return nil
}

func checkSignal(name string) error {
	if _, err := proc.ParseSignal(name); err != nil {
		return fmt.Errorf("%q is not a signal; write it as in \"SIGHUP\"", name)
	}
	return nil
}

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
