package settings

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"

	"github.com/zclconf/go-cty/cty"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/registry"
)

var formatNames = []string{"auto", "nerve", "serverset", "curator", "kafka-broker", "patroni", "dubbo-url", "host-port-name", "json", "text"}

func (s *Settings) format(b *decoder, name string, made map[string]string) string {
	if text, ok := made[name]; ok {
		return text
	}
	if !slices.Contains(formatNames, name) {
		s.errorAt(b.place("format"), "Invalid format", "There is no format %q.%s", name, didYouMean(name, append(slices.Sorted(maps.Keys(made)), formatNames...)))
	}
	return name
}

func (s *Settings) resolveGroups(d *decoder) {
	formats := map[string]string{} // by name
	for _, b := range d.blocks("format", "name", "Your own member format, for programs whose members no other format reads.") {
		f := registry.Fields{
			Address: b.text("address", `is:"place" doc:"Where a member has its host, host:port or URL: name (the name of the znode), data, a path into the JSON object that is the data, such as $.node.host, or numbers of fields in the protobuf message that is the data, such as #1.2."`),
			Only:    b.text("only,optional", `is:"string" doc:"Regular expression over the names of the znodes; the agent ignores other children without a report. Default: all children are members."`),
			Match:   b.text("match,optional", `is:"string" doc:"Regular expression over the address. A group named id or name gives the id or name of the member. A colon joins the other groups, as host and port."`),
			Port:    b.text("port,optional", `is:"place" doc:"Where the port is; without it, in the address."`),
			Weight:  b.text("weight,optional", `is:"place" doc:"Where the weight is; without it, 1."`),
			Status:  b.text("status,optional", `is:"place" doc:"Where the status is; without it, a member is up."`),
			Up:      b.list("up,optional", `is:"list of strings" doc:"Words of status that mean up; without it, the usual words such as up and passing. Other words mean down."`),
			ID:      b.text("id,optional", `is:"place" doc:"Where the identity of the member is; without it, the name of the znode."`),
			Labels:  b.textMap("labels,optional", `is:"map of places" doc:"Labels: where the value of each is."`),
		}
		if slices.Contains(formatNames, b.label) {
			s.errorAt(b.at, "Invalid format", "%q is the name of a format that needs no block.", b.label)
			continue
		}
		text, err := f.Format()
		if err != nil {
			s.errorAt(b.at, "Invalid format", "%s: %v.", b.label, err)
		}
		formats[b.label] = text
	}
	for _, b := range d.blocks("group", "name", "A group whose members templates and hooks use.") {
		path := b.text("path", `is:"znode path" doc:"The znode whose children are the members."`)
		if path == "/" { // Its children are not members.
			s.errorAt(b.place("path"), "Invalid znode path", "The root of ZooKeeper cannot be a group.")
		}
		s.Config.Groups = append(s.Config.Groups, s.groupConfig(b, path, formats))
	}
	for _, b := range d.blocks("groups", "name", "Every child of a znode as a group.") {
		path := b.text("path", `is:"znode path" doc:"The znode whose children are the groups."`)
		s.Config.GroupSets = append(s.Config.GroupSets, s.groupConfig(b, path, formats))
	}
}

func (s *Settings) groupConfig(b *decoder, path string, formats map[string]string) registry.GroupConfig {
	return registry.GroupConfig{
		Name: b.label, Path: path,
		Format:   s.format(b, b.text("format,optional", `is:"string" default:"auto" doc:"How the members' data is read: a format block, or one of auto, nerve, serverset, curator, kafka-broker, patroni, dubbo-url, host-port-name, json, text; auto looks at each member."`), formats),
		OnEmpty:  b.text("on_empty,optional", `is:"string" enum:"keep|render|fail" doc:"The reaction of templates when no member is up: keep the file in place, render without members, or fail. By default a template with an else for the group renders, and other templates keep their file."`),
		Allow:    parsed(b, "allow,optional", `is:"list of prefixes" doc:"Networks of the members; the agent leaves others out and reports them. By default it takes all."`, "Invalid network", parsePrefix),
		MaxBytes: b.size("max_bytes,optional", `is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data all members may have. Beyond it the last good members stay in use, and the condition source-unusable says by how much."`),
		Guard:    s.guard(b),
	}
}

// parsePrefix reads a network; a single address is a network of one.
func parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if addr, err2 := netip.ParseAddr(text); err != nil && err2 == nil {
		prefix, err = addr.Prefix(addr.BitLen())
	}
	switch {
	case err != nil:
		return prefix, fmt.Errorf("%q is not a network; write it as in \"10.0.0.0/8\"", text)
	case prefix != prefix.Masked():
		return prefix, fmt.Errorf("%q has bits beyond its length; %q was probably meant", text, prefix.Masked())
	}
	return prefix, nil
}

func (s *Settings) guard(d *decoder) registry.GuardConfig {
	var c registry.GuardConfig
	for _, b := range d.always("guard", "When a loss of members is too large to be believed. The guard is on without the block, too.") {
		c = registry.GuardConfig{
			Off:        !b.boolean("enabled,optional", `is:"bool" default:"true" doc:"false believes every loss at once."`),
			MaxLoss:    limited(b, "max_loss,optional", `is:"percent" default:"30%" min:"1%" max:"100%" doc:"The share of the group whose loss within the window is not believed."`, cty.String, "Invalid share", parsePercent),
			MinMembers: b.number("min_members,optional", `is:"number" default:"3" min:"1" max:"1000000" doc:"A loss of fewer members is always believed."`),
			Window:     b.duration("window,optional", `is:"duration" default:"30s" min:"1s" max:"1h" doc:"Members that are lost within this time count as lost together."`),
			Hold:       b.duration("hold,optional", `is:"duration" default:"10m" max:"168h" doc:"How long the members are kept before the loss is believed; 0s keeps them until \"zkagent members accept\"."`),
			Probe:      b.boolean("probe,optional", `is:"bool" default:"false" doc:"Connect to the members that are kept, by TCP, every 2 s: a member that fails three times in a row is dropped."`),
		}
	}
	c.Hold = cmp.Or(c.Hold, -1) // until it is accepted
	return c
}

func (s *Settings) resolveBakeCheck(b *decoder) *registry.CheckConfig {
	run := b.expression("command,optional", `is:"command" doc:"A program that exits with 0 while all is well. When it fails, its output is shown."`)
	c := &registry.CheckConfig{
		Kind:     registry.CheckHTTP,
		URL:      b.text("http,optional", `is:"url" doc:"Instead of a command: an address to request; a status from 200 to 399 is success."`),
		Interval: b.duration("interval,optional", `is:"duration" default:"10s" min:"100ms" max:"24h" doc:"Time before the first run, and between two runs. A bake that is shorter has one run, at its end."`),
		Timeout:  b.duration("timeout,optional", `is:"duration" default:"10s" min:"10ms" max:"1h" doc:"When a run is ended and counts as failed."`),
		Fall:     b.number("fall,optional", `is:"number" default:"1" min:"1" max:"1000" doc:"Failures in a row that halt the rollout. No host starts after the first one."`),
	}
	if cmd := s.command(run, vars{}); cmd.Set() {
		c.Kind = registry.CheckExec
		c.Command, _ = cmd.Args(command.Vars{})
	}
	for _, p := range b.once("prometheus", "Instead of a command: a Prometheus server that is asked for figures. A query without a result counts as failed.") {
		c.Kind = registry.CheckPrometheus
		c.URL = p.text("url", `is:"url" doc:"The server, as in http://prometheus:9090."`)
		c.Query = p.text("query", `is:"string" check:"nonempty" doc:"An instant query in PromQL. Each figure of its result is compared with the limits."`)
		c.Max = optional(p, "max", limited(p, "max,optional", `is:"number" doc:"The largest figure that is allowed."`, cty.Number, "Invalid number", decimal))
		c.Min = optional(p, "min", limited(p, "min,optional", `is:"number" doc:"The smallest figure that is allowed."`, cty.Number, "Invalid number", decimal))
		c.TLS = s.checkTLS(p, "How an https server is verified.")
		if c.Max == nil && c.Min == nil {
			s.errorAt(p.at, "No limit", "The figures need max, min or both to be compared with.")
		}
	}
	given := slices.DeleteFunc([]bool{run.Set, b.set("http"), c.Kind == registry.CheckPrometheus}, func(set bool) bool { return !set })
	if len(given) != 1 {
		s.errorAt(b.at, "Not one check", "A bake_check needs one of command, http and prometheus.")
		return nil
	}
	return c
}

func decimal(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func (s *Settings) resolveConfigs(d *decoder) {
	s.Config.BakeChecks = map[string]*registry.CheckConfig{}
	for _, b := range d.blocks("config", "name", "A config tree in ZooKeeper that templates and hooks use.") {
		c := config.Config{
			Name:     b.label,
			Path:     b.text("path", `is:"znode path" doc:"The root of the tree."`),
			Layout:   b.text("layout,optional", `is:"string" default:"auto" enum:"auto|flat|versioned|plain|leaves" doc:"auto follows a flat or a versioned tree and waits for its ready znode; plain is for trees that other tools write, without the ready rule. leaves is plain, but only znodes without children are keys, as confd and remco have it."`),
			MaxBytes: b.size("max_bytes,optional", `is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data the tree may have. Beyond it the last good tree stays in use, and the condition source-unusable says by how much."`),
			NoDelta:  !b.boolean("delta,optional", `is:"bool" default:"true" doc:"Learn a small change with the read of ready, which carries the difference, verified by digest. false: the agent takes contents only from versions and objects, which only publishers may write."`),
			Splay:    b.duration("splay,optional", `is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a version is read that is published while the tree is followed, so that a large fleet does not ask ZooKeeper in one instant. For versioned trees."`),
		}
		if c.Path == "/" {
			s.errorAt(b.place("path"), "Invalid znode path", "The root of ZooKeeper cannot be a config: it holds everything.")
		}
		if base := path.Base(c.Path); trees.IsReserved(base) && c.Path != "/" && c.Path != "" {
			s.warnAt(b.place("path"), "Reserved name", "The last element of the path, %q, is part of the layout of configs; was %q meant?", base, path.Dir(c.Path))
		}
		for _, r := range b.once("rollout", "The work of this host while it coordinates a rollout. The steps of a rollout come from the tree, from its key .rollout.json.") {
			for _, k := range r.once("bake_check", "A check of the service while a version bakes on the canaries, and after each step until the rollout ends. When it fails, the rollout halts. The host that coordinates the rollout runs its own, so every host that may coordinate should have the block.") {
				s.Config.BakeChecks[c.Name] = s.resolveBakeCheck(k)
			}
		}
		s.Config.Configs = append(s.Config.Configs, c)
	}
}

func (s *Settings) resolveElections(d *decoder) {
	paths := map[string]claimed{} // by znode path: the block that uses it
	for _, b := range d.blocks("election", "name", "An election that this agent takes part in as a candidate.") {
		path := b.text("path", `is:"znode path" doc:"The znode with the candidates below it."`)
		c := election.Config{
			Name: b.label, Path: path,
			Dialect:   b.text("dialect,optional", `is:"string" default:"curator" enum:"curator|curator-selector|kazoo" doc:"Whose layout, when others contend on the same path: Curator's LeaderLatch or LeaderSelector, or kazoo's Election."`),
			JoinDelay: b.duration("join_delay,optional", `is:"duration" default:"0s" max:"1h" doc:"How long the candidate waits before it joins. Set it on a host that should lead only while others are away. A leader is never replaced because another host joins."`),
		}
		if first, ok := paths[c.Path]; ok && c.Path != "" {
			s.errorAt(b.place("path"), "Two blocks with one path", "election %q already uses %s, at %s.", first.name, c.Path, place(first.at))
		} else {
			paths[c.Path] = claimed{c.Name, b.place("path")}
		}
		s.Config.Elections = append(s.Config.Elections, c)
	}
}
