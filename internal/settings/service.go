package settings

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/registry"
)

func (s *Settings) resolveServices(d *decoder) {
	ids := map[string]claimed{}
	for _, b := range d.blocks("service", "name", "A service of this host: a member of a group for as long as its checks pass.") {
		c := s.resolveService(b)
		for _, group := range c.Groups {
			key := group + "\x00" + c.MemberID
			if first, ok := ids[key]; ok && c.MemberID != "" {
				s.errorAt(b.at, "Two services with one member", "Service %q has the group and the member_id of %q at %s.", c.Name, first.name, place(first.at))
			}
			ids[key] = claimed{c.Name, b.at}
		}
		s.Config.Services = append(s.Config.Services, c)
	}
}

func (s *Settings) resolveService(b *decoder) registry.ServiceConfig {
	errs := len(s.Diagnostics.Errs())
	c := registry.ServiceConfig{
		Name:    b.label,
		Groups:  b.list("group", `is:"znode path or list" doc:"The group that it is a member of, or a list of groups."`),
		Address: b.text("address,optional", `is:"host" doc:"Where clients reach it. The default is the local address that reaches ZooKeeper."`),
		Port:    b.number("port", `is:"number" min:"1" max:"65535" doc:"Where clients reach it."`),
		Ports:   s.ports(b, b.textMap("ports,optional", `is:"map of ports" doc:"Further named ports."`)),
		Format:  b.text("format,optional", `is:"string" default:"nerve" enum:"nerve|serverset|curator|template" doc:"How the member's data is written, for those who read it."`),
		Splay:   s.Config.Splay,
	}
	c.Template = b.text("template,optional", `is:"string" doc:"With format = \"template\": the text/template of the data."`)
	c.Sequential = b.boolean("sequential,optional", `is:"bool" default:"false" doc:"With format = \"template\": add a sequence number to the znode's name."`)
	c.MemberID = b.text("member_id,optional", `is:"string" check:"nonempty" doc:"Name of this instance, stable over restarts. The default consists of the host name and the label."`)
	c.Weight = optional(b, "weight", b.number("weight,optional", `is:"number" min:"0" max:"256" doc:"Its share of the load, where the format has a place for it."`))
	c.Labels = b.textMap("labels,optional", `is:"map of strings" doc:"Labels, where the format has a place for them."`)
	c.HAProxyServerOptions = b.text("haproxy_server_options,optional", `is:"string" doc:"With format = \"nerve\": further options for Synapse's HAProxy server line."`)
	c.Shard = optional(b, "shard", b.number("shard,optional", `is:"number" min:"0" max:"1000000" doc:"With format = \"serverset\": the shard."`))
	c.Curator = s.curator(b, c.Format)
	c.OnCritical = b.text("on_critical,optional", `is:"string" default:"remove" enum:"remove|status" doc:"The reaction when its checks have failed: remove the member, or keep it with the status down."`)
	c.Drain = b.duration("drain,optional", `is:"duration" default:"0s" max:"1h" doc:"How long it is shown as draining before it leaves."`)
	c.WarmUp = b.duration("warm_up,optional", `is:"duration" default:"0s" max:"1h" doc:"How long its weight takes to climb to weight after it has become healthy."`)
	s.onlyWith(b, "template", c.Format, "template")
	s.onlyWith(b, "sequential", c.Format, "template")
	s.onlyWith(b, "haproxy_server_options", c.Format, "nerve")
	s.onlyWith(b, "shard", c.Format, "serverset")
	if c.Format == "template" && c.Template == "" {
		s.errorAt(b.at, "Missing required argument", "format = \"template\" needs the argument \"template\".")
	}
	for _, h := range b.kinds("check", "A health check; the label is its kind. It is a member while all of them pass, and always without one.", checkKinds) {
		if check, ok := s.resolveCheck(h); ok {
			c.Checks = append(c.Checks, check)
		}
	}
	b.end()
	// Report what the formats refuse only when the arguments themselves are right.
	if len(s.Diagnostics.Errs()) == errs {
		if err := c.Validate(); err != nil {
			s.errorAt(b.at, "Invalid service", "%v.", err)
		}
	}
	return c
}

func (s *Settings) curator(d *decoder, format string) registry.CuratorOptions {
	var c registry.CuratorOptions
	for _, b := range d.once("curator", "With format = \"curator\": the fields that the readers of a framework expect.") {
		c = registry.CuratorOptions{
			Preset:       b.text("preset,optional", `is:"string" enum:"spring|dubbo3" doc:"The payload and the URI of Spring Cloud Zookeeper, or the payload of Dubbo 3 at the level of applications. They have the labels as metadata. Without a payload, labels are dropped."`),
			PayloadClass: b.text("payload_class,optional", `is:"string" check:"nonempty" doc:"The @class of the payload, for readers that have their own class. Default: the class of the preset. Without either, the agent writes no payload."`),
			PayloadID:    b.text("payload_id,optional", `is:"string" check:"nonempty" doc:"The id within the payload. The default is the member_id."`),
			URISpec:      b.text("uri_spec,optional", `is:"string" check:"nonempty" doc:"How clients make the URI, as in \"{scheme}://{address}:{port}\". The default is that of the preset."`),
			SSLPort:      b.number("ssl_port,optional", `is:"number" min:"1" max:"65535" doc:"Where clients reach it by TLS."`),
			NoPort:       b.boolean("no_port,optional", `is:"bool" default:"false" doc:"Write only ssl_port: the service has no port without TLS."`),
		}
		if format != registry.FormatCurator {
			s.errorAt(b.at, "Block is not used", "\"curator\" has a meaning only with format = \"curator\", and the format is %q.", format)
		}
	}
	return c
}

func (s *Settings) ports(b *decoder, texts map[string]string) map[string]int {
	var ports map[string]int
	for _, name := range sortedKeys(texts) {
		if checkPort(texts[name], 1) != nil {
			s.errorAt(b.place("ports"), "Invalid port", "%s: %s is not a port from 1 to 65535.", name, texts[name])
		}
		if ports == nil {
			ports = map[string]int{}
		}
		ports[name], _ = strconv.Atoi(texts[name])
	}
	return ports
}

// onlyWith reports an argument that has a meaning with one format only.
func (s *Settings) onlyWith(b *decoder, name, format, want string) {
	if b.set(name) && format != want {
		s.errorAt(b.place(name), "Argument is not used", "%q has a meaning only with format = %q, and the format is %q.", name, want, format)
	}
}

// optional is a number that may be absent.
func optional[T any](b *decoder, name string, n T) *T {
	if !b.set(name) {
		return nil
	}
	return &n
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

var checkKinds = []string{registry.CheckHTTP, registry.CheckTCP, registry.CheckGRPC, registry.CheckExec, registry.CheckTTL}

func (s *Settings) resolveCheck(b *decoder) (registry.CheckConfig, bool) {
	c := registry.CheckConfig{Kind: b.label}
	switch b.label {
	case registry.CheckHTTP:
		c.URL = b.text("url", `is:"url" doc:"Address to request, http or https."`)
		c.Method = b.text("method,optional", `is:"string" default:"GET" enum:"GET|HEAD|POST|PUT|OPTIONS" doc:"The method of the request."`)
		c.Headers = b.textMap("headers,optional", `is:"map of strings" doc:"Headers of the request; Host sets the host."`)
		c.Status = b.text("status,optional", `is:"string" default:"200-399" doc:"The statuses that pass, as in \"200,204,300-308\"."`)
		c.Body = b.text("body,optional", `is:"string" doc:"A regular expression that the first 64 kB of the body must match."`)
		c.Follow = b.boolean("follow_redirects,optional", `is:"bool" default:"false" doc:"Follow redirects instead of judging them by their status."`)
		c.TLS = s.checkTLS(b, "How an https server is verified.")
	case registry.CheckTCP:
		c.Address = b.text("address", `is:"address" doc:"host:port to connect to."`)
	case registry.CheckGRPC:
		c.Address = b.text("address", `is:"address" doc:"host:port of the server, which is asked by the gRPC health protocol."`)
		c.Service = b.text("service,optional", `is:"string" doc:"The service that is asked for; the default is the whole server."`)
		c.TLS = s.checkTLS(b, "Encrypt; without the block the connection is plain.")
	case registry.CheckExec:
		if cmd := s.command(b.expression("command", `is:"command" doc:"A program that exits with 0 when all is well."`), vars{}); cmd.Set() {
			c.Command, _ = cmd.Args(command.Vars{})
		}
	case registry.CheckTTL:
		c.TTL = b.duration("ttl", `is:"duration" min:"100ms" max:"24h" doc:"How long a report by \"zkagent check\" is good for."`)
		c.Name = b.text("name,optional", `is:"string" check:"nonempty" doc:"As in every check."`)
		c.Rise = b.number("rise,optional", `is:"number" default:"1" min:"1" max:"1000" doc:"As in every check."`)
		c.Fall = b.number("fall,optional", `is:"number" default:"1" min:"1" max:"1000" doc:"As in every check."`)
		return c, true
	default:
		s.errorAt(b.labelAt, "Unknown kind of check", "There is no check %q; the kinds are %s.%s", b.label, quoted(checkKinds), didYouMean(b.label, checkKinds))
		b.body = nil // what it may hold is not known
		return c, false
	}
	s.pace(&c, b)
	return c, true
}

// pace reads the arguments that every kind of check but ttl takes.
func (s *Settings) pace(c *registry.CheckConfig, b *decoder) {
	b.common = true
	c.Name = b.text("name,optional", `is:"string" check:"nonempty" doc:"Its name in status and metrics; the default is the kind. Two checks of a kind need names."`)
	c.Interval = b.duration("interval,optional", `is:"duration" default:"2s" min:"100ms" max:"24h" doc:"Time between two runs."`)
	c.Timeout = b.duration("timeout,optional", `is:"duration" default:"1s" min:"10ms" max:"1h" doc:"When a run is ended and counts as failed."`)
	c.Rise = b.number("rise,optional", `is:"number" default:"2" min:"1" max:"1000" doc:"Successes in a row until it passes."`)
	c.Fall = b.number("fall,optional", `is:"number" default:"3" min:"1" max:"1000" doc:"Failures in a row until it is critical."`)
	switch {
	case c.Timeout <= c.Interval:
	case b.set("timeout"):
		s.errorAt(b.place("timeout"), "Timeout longer than the interval", "A run may take %s and the next begins after %s; make timeout at most interval.", c.Timeout, c.Interval)
	default:
		c.Timeout = max(c.Interval, 10*time.Millisecond)
	}
}

func (s *Settings) checkTLS(d *decoder, doc string) *registry.TLSConfig {
	var c *registry.TLSConfig
	for _, b := range d.once("tls", doc) {
		c = s.tls(b)
		c.Insecure = b.boolean("insecure,optional", `is:"bool" default:"false" doc:"Do not verify the server."`)
	}
	return c
}

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
		c.Signal = b.text("signal,optional", `is:"signal" default:"SIGHUP" doc:"The signal that on_change = \"signal\" sends. A program that has just started gets it once it catches it, or after 10 seconds."`)
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
