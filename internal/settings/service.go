package settings

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/registry"
)

type serviceBlock struct {
	Name       string         `hcl:"name,label"`
	At         hcl.Range      `hcl:",def_range"`
	Invalid    bool           `hcl:",invalid"`
	Groups     list           `hcl:"group" is:"znode path or list" doc:"The group that it is a member of, or a list of groups."`
	Address    text           `hcl:"address,optional" is:"host" doc:"Where clients reach it. The default is the local address that reaches ZooKeeper."`
	Port       number         `hcl:"port" is:"number" min:"1" max:"65535" doc:"Where clients reach it."`
	Ports      portMap        `hcl:"ports,optional" is:"map of ports" doc:"Further named ports."`
	Format     text           `hcl:"format,optional" is:"string" default:"nerve" enum:"nerve|serverset|curator|template" doc:"How the member's data is written, for those who read it."`
	Template   text           `hcl:"template,optional" is:"string" doc:"With format = \"template\": the text/template of the data."`
	Sequential boolean        `hcl:"sequential,optional" is:"bool" default:"false" doc:"With format = \"template\": add a sequence number to the znode's name."`
	MemberID   text           `hcl:"member_id,optional" is:"string" check:"nonempty" doc:"Name of this instance, stable over restarts. The default consists of the host name and the label."`
	Weight     number         `hcl:"weight,optional" is:"number" min:"0" max:"256" doc:"Its share of the load, where the format has a place for it."`
	Labels     textMap        `hcl:"labels,optional" is:"map of strings" doc:"Labels, where the format has a place for them."`
	HAProxy    text           `hcl:"haproxy_server_options,optional" is:"string" doc:"With format = \"nerve\": further options for Synapse's HAProxy server line."`
	Shard      number         `hcl:"shard,optional" is:"number" min:"0" max:"1000000" doc:"With format = \"serverset\": the shard."`
	OnCritical text           `hcl:"on_critical,optional" is:"string" default:"remove" enum:"remove|status" doc:"The reaction when its checks have failed: remove the member, or keep it with the status down."`
	Drain      duration       `hcl:"drain,optional" is:"duration" default:"0s" max:"1h" doc:"How long it is shown as draining before it leaves."`
	WarmUp     duration       `hcl:"warm_up,optional" is:"duration" default:"0s" max:"1h" doc:"How long its weight takes to climb to weight after it has become healthy."`
	Checks     []*checkHeader `hcl:"check,block" doc:"A health check; the label is its kind. It is a member while all of them pass, and always without one."`
}

func (s *Settings) resolveServices(blocks []*serviceBlock) {
	ids := map[string]*serviceBlock{}
	for _, b := range blocks {
		c := s.resolveService(b)
		for _, group := range c.Groups {
			if c.MemberID == "" {
				break
			}
			key := group + "\x00" + c.MemberID
			if first, ok := ids[key]; ok {
				s.errorAt(b.At, "Two services with one member", "Service %q has the group and the member_id of %q at %s.", b.Name, first.Name, place(first.At))
			}
			ids[key] = b
		}
		s.Config.Services = append(s.Config.Services, c)
	}
}

func (s *Settings) resolveService(b *serviceBlock) registry.ServiceConfig {
	errs := len(s.Diagnostics.Errs())
	c := registry.ServiceConfig{
		Name: b.Name, Groups: b.Groups.Value, Address: b.Address.Value, Port: b.Port.Value,
		Ports: b.Ports.Value, Format: b.Format.Value, Template: b.Template.Value, Sequential: b.Sequential.Value,
		MemberID: b.MemberID.Value, Weight: optional(b.Weight), Labels: b.Labels.Value,
		HAProxyServerOptions: b.HAProxy.Value, Shard: optional(b.Shard), OnCritical: b.OnCritical.Value,
		Drain: b.Drain.Value, WarmUp: b.WarmUp.Value, Splay: s.Config.Splay, Logger: s.opts.Logger,
	}
	if s.Config.StateDir != "" {
		c.StateFile = filepath.Join(s.Config.StateDir, "maintenance-"+b.Name+".json")
	}
	s.onlyWith(b.Template.written, c.Format, "template")
	s.onlyWith(b.Sequential.written, c.Format, "template")
	s.onlyWith(b.HAProxy.written, c.Format, "nerve")
	s.onlyWith(b.Shard.written, c.Format, "serverset")
	if c.Format == "template" && c.Template == "" {
		s.errorAt(b.At, "Missing required argument", "format = \"template\" needs the argument \"template\".")
	}
	for _, h := range b.Checks {
		if check, ok := s.resolveCheck(h); ok {
			c.Checks = append(c.Checks, check)
		}
	}
	// Report what the formats refuse only when the arguments themselves are right.
	if !b.Invalid && len(s.Diagnostics.Errs()) == errs {
		if err := c.Validate(); err != nil {
			s.errorAt(b.At, "Invalid service", "%v.", err)
		}
	}
	return c
}

// onlyWith reports an argument that has a meaning with one format only.
func (s *Settings) onlyWith(w written, format, want string) {
	if w.Set && format != want {
		s.errorAt(w.At, "Argument is not used", "%q has a meaning only with format = %q, and the format is %q.", w.Name, want, format)
	}
}

// optional is a number that may be absent.
func optional(n number) *int {
	if !n.Set {
		return nil
	}
	return &n.Value
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
