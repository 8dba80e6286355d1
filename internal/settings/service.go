package settings

import (
	"maps"
	"slices"

	"github.com/zkagent/zkagent/registry"
)

func (s *Settings) resolveServices(d *decoder) {
	ids := map[string]claimed{}
	for _, b := range d.blocks("service", "name", "A service of this host: a member of a group for as long as its checks pass.") {
		c := s.resolveService(b)
		for _, group := range c.Groups {
			if c.MemberID == "" {
				break
			}
			key := group + "\x00" + c.MemberID
			if first, ok := ids[key]; ok {
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
		Ports:   b.reader("ports,optional", `is:"map of ports" doc:"Further named ports."`).ports(),
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

// onlyWith reports an argument that has a meaning with one format only.
func (s *Settings) onlyWith(b *decoder, name, format, want string) {
	if b.set(name) && format != want {
		s.errorAt(b.place(name), "Argument is not used", "%q has a meaning only with format = %q, and the format is %q.", name, want, format)
	}
}

// optional is a number that may be absent.
func optional(b *decoder, name string, n int) *int {
	if !b.set(name) {
		return nil
	}
	return &n
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
