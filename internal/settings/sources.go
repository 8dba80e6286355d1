package settings

import (
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/registry"
)

// groupArgs are the arguments of a group, and of each group of a set.
type groupArgs struct {
	Format   text        `hcl:"format,optional" is:"string" default:"auto" doc:"How the members' data is read: a format block, or one of auto, nerve, serverset, curator, kafka-broker, patroni, dubbo-url, host-port-name, json, text; auto looks at each member."`
	OnEmpty  text        `hcl:"on_empty,optional" is:"string" enum:"keep|render|fail" doc:"The reaction of templates when no member is up: keep the file in place, render without members, or fail. By default a template with an else for the group renders, and other templates keep their file."`
	Allow    list        `hcl:"allow,optional" is:"list of prefixes" doc:"Networks of the members; the agent leaves others out and reports them. By default it takes all."`
	MaxBytes size        `hcl:"max_bytes,optional" is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data all members may have. Beyond it the last good members stay in use, and the condition source-unusable says by how much."`
	Guard    *guardBlock `hcl:"guard,block" doc:"When a loss of members is too large to be believed. The guard is on without the block, too."`
}

type groupBlock struct {
	Name string    `hcl:"name,label"`
	At   hcl.Range `hcl:",def_range"`
	Path text      `hcl:"path" is:"znode path" doc:"The znode whose children are the members."`
	groupArgs
}

type formatBlock struct {
	Name    string    `hcl:"name,label"`
	At      hcl.Range `hcl:",def_range"`
	Address text      `hcl:"address" is:"place" doc:"Where a member has its host, host:port or URL: name (the name of the znode), data, a path into the JSON object that is the data, such as $.node.host, or numbers of fields in the protobuf message that is the data, such as #1.2."`
	Only    text      `hcl:"only,optional" is:"string" doc:"Regular expression over the names of the znodes; other children are no members, and are not reported. Without it, all are."`
	Match   text      `hcl:"match,optional" is:"string" doc:"Regular expression over the address; its groups are joined by a colon, as host and port."`
	Port    text      `hcl:"port,optional" is:"place" doc:"Where the port is; without it, in the address."`
	Weight  text      `hcl:"weight,optional" is:"place" doc:"Where the weight is; without it, 1."`
	Status  text      `hcl:"status,optional" is:"place" doc:"Where the status is; without it, a member is up."`
	Up      list      `hcl:"up,optional" is:"list of strings" doc:"Words of status that mean up; without it, the usual words such as up and passing. Other words mean down."`
	ID      text      `hcl:"id,optional" is:"place" doc:"Where the identity of the member is; without it, the name of the znode."`
	Labels  textMap   `hcl:"labels,optional" is:"map of places" doc:"Labels: where the value of each is."`
}

var formatNames = []string{"auto", "nerve", "serverset", "curator", "kafka-broker", "patroni", "dubbo-url", "host-port-name", "json", "text"}

func (s *Settings) formats(blocks []*formatBlock) map[string]string {
	made := map[string]string{}
	for _, b := range blocks {
		if slices.Contains(formatNames, b.Name) {
			s.errorAt(b.At, "Invalid format", "%q is the name of a format that needs no block.", b.Name)
			continue
		}
		f := registry.Fields{
			Only: b.Only.Value, Address: b.Address.Value, Match: b.Match.Value, Port: b.Port.Value, Weight: b.Weight.Value, Status: b.Status.Value,
			Up: b.Up.Value, ID: b.ID.Value, Labels: b.Labels.Value,
		}
		text, err := f.Format()
		if err != nil {
			s.errorAt(b.At, "Invalid format", "%s: %v.", b.Name, err)
		}
		made[b.Name] = text
	}
	return made
}

func (s *Settings) format(name text, made map[string]string) string {
	if text, ok := made[name.Value]; ok {
		return text
	}
	if !slices.Contains(formatNames, name.Value) {
		s.errorAt(name.At, "Invalid format", "There is no format %q.%s", name.Value, didYouMean(name.Value, append(slices.Sorted(maps.Keys(made)), formatNames...)))
	}
	return name.Value
}

type groupsBlock struct {
	Name string    `hcl:"name,label"`
	At   hcl.Range `hcl:",def_range"`
	Path text      `hcl:"path" is:"znode path" doc:"The znode whose children are the groups."`
	groupArgs
}

type guardBlock struct {
	At         hcl.Range `hcl:",def_range"`
	Enabled    boolean   `hcl:"enabled,optional" is:"bool" default:"true" doc:"false believes every loss at once."`
	MaxLoss    share     `hcl:"max_loss,optional" is:"percent" default:"30%" min:"1%" max:"100%" doc:"The share of the group whose loss within the window is not believed."`
	MinMembers number    `hcl:"min_members,optional" is:"number" default:"3" min:"1" max:"1000000" doc:"A loss of fewer members is always believed."`
	Window     duration  `hcl:"window,optional" is:"duration" default:"30s" min:"1s" max:"1h" doc:"Members that are lost within this time count as lost together."`
	Hold       duration  `hcl:"hold,optional" is:"duration" default:"10m" max:"168h" doc:"How long the members are kept before the loss is believed; 0s keeps them until \"zkagent members accept\"."`
	Probe      boolean   `hcl:"probe,optional" is:"bool" default:"false" doc:"Connect to the members that are kept, by TCP, every 2 s: a member that fails three times in a row is dropped."`
}

func (s *Settings) resolveGroups(all *root) {
	formats := s.formats(all.Formats)
	for _, b := range all.Groups {
		if b.Path.Value == "/" { // Its children are not members.
			s.errorAt(b.Path.At, "Invalid znode path", "The root of ZooKeeper cannot be a group.")
		}
		s.Config.Groups = append(s.Config.Groups, s.groupConfig(b.Name, b.Path.Value, &b.groupArgs, formats))
	}
	for _, b := range all.GroupSets {
		s.Config.GroupSets = append(s.Config.GroupSets, s.groupConfig(b.Name, b.Path.Value, &b.groupArgs, formats))
	}
}

func (s *Settings) groupConfig(name, path string, b *groupArgs, formats map[string]string) registry.GroupConfig {
	return registry.GroupConfig{
		Name: name, Path: path, Format: s.format(b.Format, formats), OnEmpty: b.OnEmpty.Value,
		Allow: s.prefixes(b.Allow), Guard: s.guard(b.Guard), MaxBytes: b.MaxBytes.Value, Logger: s.opts.Logger,
	}
}

// prefixes reads networks; a single address is a network of one.
func (s *Settings) prefixes(allow list) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range allow.Value {
		prefix, err := netip.ParsePrefix(text)
		if addr, err2 := netip.ParseAddr(text); err != nil && err2 == nil {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		switch {
		case err != nil:
			s.errorAt(allow.At, "Invalid network", "%q is not a network; write it as in \"10.0.0.0/8\".", text)
		case prefix != prefix.Masked():
			s.errorAt(allow.At, "Invalid network", "%q has bits beyond its length; %q was probably meant.", text, prefix.Masked())
		default:
			list = append(list, prefix)
		}
	}
	return list
}

func (s *Settings) guard(b *guardBlock) registry.GuardConfig {
	b = orAbsent(s, b)
	c := registry.GuardConfig{
		Off: !b.Enabled.Value, MaxLoss: b.MaxLoss.Value, MinMembers: b.MinMembers.Value,
		Window: b.Window.Value, Hold: b.Hold.Value, Probe: b.Probe.Value,
	}
	if c.Hold == 0 {
		c.Hold = -1 // until it is accepted
	}
	return c
}

type configBlock struct {
	Name     string        `hcl:"name,label"`
	At       hcl.Range     `hcl:",def_range"`
	Path     text          `hcl:"path" is:"znode path" doc:"The root of the tree."`
	Layout   text          `hcl:"layout,optional" is:"string" default:"auto" enum:"auto|flat|versioned|plain|leaves" doc:"auto follows a flat or a versioned tree and waits for its ready znode; plain is for trees that other tools write, without the ready rule. leaves is plain, but only znodes without children are keys, as confd and remco have it."`
	MaxBytes size          `hcl:"max_bytes,optional" is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data the tree may have. Beyond it the last good tree stays in use, and the condition source-unusable says by how much."`
	Delta    boolean       `hcl:"delta,optional" is:"bool" default:"true" doc:"Learn a small change with the read of ready, which carries the difference, verified by digest. false: the agent takes contents only from versions and objects, which only publishers may write."`
	Splay    duration      `hcl:"splay,optional" is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a version is read that is published while the tree is followed, so that a large fleet does not ask ZooKeeper in one instant. For versioned trees."`
	Rollout  *rolloutBlock `hcl:"rollout,block" doc:"What this host does as the coordinator of a rollout. How a version is rolled out stands in the tree, in its key .rollout.json."`
}

type rolloutBlock struct {
	At        hcl.Range       `hcl:",def_range"`
	BakeCheck *bakeCheckBlock `hcl:"bake_check,block" doc:"A check of the service while a version bakes on the canaries, and after each step until the rollout ends. When it fails, the rollout halts. The host that coordinates the rollout runs its own, so every host that may coordinate should have the block."`
}

type bakeCheckBlock struct {
	At         hcl.Range        `hcl:",def_range"`
	Command    expression       `hcl:"command,optional" is:"command" doc:"A program that exits with 0 while all is well. When it fails, its output is shown."`
	HTTP       text             `hcl:"http,optional" is:"url" doc:"Instead of a command: an address to request; a status from 200 to 399 is success."`
	Prometheus *prometheusBlock `hcl:"prometheus,block" doc:"Instead of a command: a Prometheus server that is asked for figures. A query without a result counts as failed."`
	Interval   duration         `hcl:"interval,optional" is:"duration" default:"10s" min:"100ms" max:"24h" doc:"Time before the first run, and between two runs. A bake that is shorter has one run, at its end."`
	Timeout    duration         `hcl:"timeout,optional" is:"duration" default:"10s" min:"10ms" max:"1h" doc:"When a run is ended and counts as failed."`
	Fall       number           `hcl:"fall,optional" is:"number" default:"1" min:"1" max:"1000" doc:"Failures in a row that halt the rollout. No host starts after the first one."`
}

type prometheusBlock struct {
	At    hcl.Range `hcl:",def_range"`
	URL   text      `hcl:"url" is:"url" doc:"The server, as in http://prometheus:9090."`
	Query text      `hcl:"query" is:"string" check:"nonempty" doc:"An instant query in PromQL. Each figure of its result is compared with the limits."`
	Max   text      `hcl:"max,optional" is:"number" doc:"The largest figure that is allowed."`
	Min   text      `hcl:"min,optional" is:"number" doc:"The smallest figure that is allowed."`
	TLS   *checkTLS `hcl:"tls,block" doc:"How an https server is verified."`
}

// resolveBakeCheck returns the bake check of a config; nil: it is not valid.
func (s *Settings) resolveBakeCheck(b *bakeCheckBlock) *registry.CheckConfig {
	kinds := 0
	for _, set := range []bool{b.Command.Set, b.HTTP.Set, b.Prometheus != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		s.errorAt(b.At, "Not one check", "A bake_check needs one of command, http and prometheus.")
		return nil
	}
	c := &registry.CheckConfig{Kind: registry.CheckHTTP, URL: b.HTTP.Value, Interval: b.Interval.Value, Timeout: b.Timeout.Value, Fall: b.Fall.Value}
	if cmd := s.command(b.Command, vars{}); cmd.Set() {
		c.Kind = registry.CheckExec
		c.Command, _ = cmd.Args(command.Vars{})
	}
	if p := b.Prometheus; p != nil {
		c.Kind, c.URL, c.Query, c.TLS = registry.CheckPrometheus, p.URL.Value, p.Query.Value, s.checkTLS(p.TLS)
		c.Max, c.Min = s.limit(p.Max), s.limit(p.Min)
		if !p.Max.Set && !p.Min.Set {
			s.errorAt(p.At, "No limit", "The figures need max, min or both to be compared with.")
		}
	}
	return c
}

// limit is a number that may be absent.
func (s *Settings) limit(t text) *float64 {
	if !t.Set {
		return nil
	}
	v, err := strconv.ParseFloat(t.Value, 64)
	if err != nil {
		s.errorAt(t.At, "Invalid number", "%q must be a number.", t.Name)
	}
	return &v
}

func (s *Settings) resolveConfigs(blocks []*configBlock) {
	s.Config.BakeChecks = map[string]*registry.CheckConfig{}
	for _, b := range blocks {
		c := config.Config{Name: b.Name, Path: b.Path.Value, Layout: b.Layout.Value, Splay: b.Splay.Value, MaxBytes: b.MaxBytes.Value, NoDelta: !b.Delta.Value, Logger: s.opts.Logger}
		if c.Path == "/" {
			s.errorAt(b.Path.At, "Invalid znode path", "The root of ZooKeeper cannot be a config: it holds everything.")
		}
		if base := path.Base(c.Path); trees.IsReserved(base) && c.Path != "/" && c.Path != "" {
			s.warnAt(b.Path.At, "Reserved name", "The last element of the path, %q, is part of the layout of configs; was %q meant?", base, path.Dir(c.Path))
		}
		if b.Rollout != nil && b.Rollout.BakeCheck != nil {
			s.Config.BakeChecks[b.Name] = s.resolveBakeCheck(b.Rollout.BakeCheck)
		}
		s.Config.Configs = append(s.Config.Configs, c)
	}
}

type electionBlock struct {
	Name      string    `hcl:"name,label"`
	At        hcl.Range `hcl:",def_range"`
	Path      text      `hcl:"path" is:"znode path" doc:"The znode with the candidates below it."`
	Dialect   text      `hcl:"dialect,optional" is:"string" default:"curator" enum:"curator|curator-selector|kazoo" doc:"Whose layout, when others contend on the same path: Curator's LeaderLatch or LeaderSelector, or kazoo's Election."`
	JoinDelay duration  `hcl:"join_delay,optional" is:"duration" default:"0s" max:"1h" doc:"How long the candidate waits before it joins. Set it on a host that should lead only while others are away. A leader is never replaced because another host joins."`
}

func (s *Settings) resolveElections(blocks []*electionBlock) {
	paths := map[string]claimed{} // by znode path: the block that uses it
	for _, b := range blocks {
		c := agent.ElectionConfig{Name: b.Name, Path: b.Path.Value, Dialect: b.Dialect.Value, JoinDelay: b.JoinDelay.Value}
		if first, ok := paths[c.Path]; ok && c.Path != "" {
			s.errorAt(b.Path.At, "Two blocks with one path", "election %q already uses %s, at %s.", first.name, c.Path, place(first.at))
		} else {
			paths[c.Path] = claimed{b.Name, b.Path.At}
		}
		s.Config.Elections = append(s.Config.Elections, c)
	}
}
