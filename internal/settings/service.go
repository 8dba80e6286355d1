package settings

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/zkagent/zkagent/registry"
)

type serviceBlock struct {
	Name       string         `hcl:"name,label"`
	At         hcl.Range      `hcl:",def_range"`
	Group      hcl.Expression `hcl:"group" is:"znode path" doc:"The group that it is a member of."`
	Address    hcl.Expression `hcl:"address,optional" is:"host" doc:"Where clients reach it. The default is the local address that reaches ZooKeeper."`
	Port       hcl.Expression `hcl:"port" is:"number" min:"1" max:"65535" doc:"Where clients reach it."`
	Ports      hcl.Expression `hcl:"ports,optional" is:"map of ports" doc:"Further named ports."`
	Format     hcl.Expression `hcl:"format,optional" is:"string" default:"nerve" enum:"nerve|serverset|curator|template" doc:"How the member's data is written, for those who read it."`
	Template   hcl.Expression `hcl:"template,optional" is:"string" doc:"With format = \"template\": the text/template of the data."`
	Sequential hcl.Expression `hcl:"sequential,optional" is:"bool" default:"false" doc:"With format = \"template\": add a sequence number to the znode's name."`
	MemberID   hcl.Expression `hcl:"member_id,optional" is:"string" doc:"Name of this instance, stable over restarts. The default is made of the host name and the label."`
	Weight     hcl.Expression `hcl:"weight,optional" is:"number" min:"0" max:"256" doc:"Its share of the load, where the format has a place for it."`
	Labels     hcl.Expression `hcl:"labels,optional" is:"map of strings" doc:"Labels, where the format has a place for them."`
	HAProxy    hcl.Expression `hcl:"haproxy_server_options,optional" is:"string" doc:"With format = \"nerve\": further options for Synapse's HAProxy server line."`
	Shard      hcl.Expression `hcl:"shard,optional" is:"number" min:"0" max:"1000000" doc:"With format = \"serverset\": the shard."`
	OnCritical hcl.Expression `hcl:"on_critical,optional" is:"string" default:"remove" enum:"remove|status" doc:"What happens when its checks have fallen: the member is removed, or kept with its status changed."`
	Drain      hcl.Expression `hcl:"drain,optional" is:"duration" default:"0s" max:"1h" doc:"How long it is shown as draining before it leaves."`
	WarmUp     hcl.Expression `hcl:"warm_up,optional" is:"duration" default:"0s" max:"1h" doc:"How long its weight takes to climb to weight after it has become healthy."`
	Checks     []*checkHeader `hcl:"check,block" doc:"A health check; the label is its kind. It is a member while all of them pass, and always without one."`
}

func (s *Settings) resolveServices(blocks []*serviceBlock) {
	ids := map[string]*serviceBlock{}
	for _, b := range blocks {
		c := s.resolveService(b)
		if c.MemberID != "" {
			key := c.Group + "\x00" + c.MemberID
			if first, ok := ids[key]; ok {
				s.errorAt(b.At, "Two services with one member", "Service %q has the group and the member_id of %q at %s.", b.Name, first.Name, place(first.At))
			}
			ids[key] = b
		}
		s.Config.Services = append(s.Config.Services, c)
	}
}

func (s *Settings) resolveService(b *serviceBlock) registry.ServiceConfig {
	r := s.read(b, b.At)
	errs := len(s.Diagnostics.Errs())
	c := registry.ServiceConfig{
		Name: b.Name, Group: r.znode(&b.Group), Address: r.checked(&b.Address, "Invalid address", checkHost), Port: r.integer(&b.Port),
		Ports: s.ports(r, &b.Ports), Format: r.str(&b.Format), Template: r.str(&b.Template), Sequential: r.boolean(&b.Sequential),
		MemberID: r.text(&b.MemberID), Weight: r.optionalInt(&b.Weight), Labels: r.strmap(&b.Labels),
		HAProxyServerOptions: r.str(&b.HAProxy), Shard: r.optionalInt(&b.Shard), OnCritical: r.str(&b.OnCritical),
		Drain: r.duration(&b.Drain), WarmUp: r.duration(&b.WarmUp), Splay: s.Config.Splay, Logger: s.opts.Logger,
	}
	if s.Config.StateDir != "" {
		c.StateFile = filepath.Join(s.Config.StateDir, "maintenance-"+b.Name+".json")
	}
	s.onlyWith(r, &b.Template, c.Format, "template")
	s.onlyWith(r, &b.Sequential, c.Format, "template")
	s.onlyWith(r, &b.HAProxy, c.Format, "nerve")
	s.onlyWith(r, &b.Shard, c.Format, "serverset")
	if c.Format == "template" && c.Template == "" {
		s.errorAt(b.At, "Missing required argument", "format = \"template\" needs the argument \"template\".")
	}
	for _, h := range b.Checks {
		if check, ok := s.resolveCheck(h); ok {
			c.Checks = append(c.Checks, check)
		}
	}
	// Report what the formats refuse only when the arguments themselves are right.
	if len(s.Diagnostics.Errs()) == errs {
		if err := c.Validate(); err != nil {
			s.errorAt(b.At, "Invalid service", "%v.", err)
		}
	}
	return c
}

// onlyWith reports an argument that has a meaning with one format only.
func (s *Settings) onlyWith(r *reader, p *hcl.Expression, format, want string) {
	if r.isSet(p) && format != want {
		s.errorAt(r.where(p), "Argument is not used", "%q has a meaning only with format = %q, and the format is %q.", r.rule(p).name, want, format)
	}
}

// optionalInt reads a number that may be absent.
func (r *reader) optionalInt(p *hcl.Expression) *int {
	if !r.isSet(p) {
		return nil
	}
	n := r.integer(p)
	return &n
}

// ports reads a map of named ports.
func (s *Settings) ports(r *reader, p *hcl.Expression) map[string]int {
	v, ok := r.value(p, cty.Map(cty.Number))
	if !ok {
		return nil
	}
	m := map[string]int{}
	values := v.AsValueMap()
	for _, name := range sortedKeys(values) {
		if values[name].IsNull() {
			continue
		}
		n, accuracy := values[name].AsBigFloat().Int64()
		if accuracy != 0 || n < 1 || n > 65535 {
			s.errorAt(r.where(p), "Invalid port", "%s: %s is not a port from 1 to 65535.", name, values[name].AsBigFloat().String())
			continue
		}
		m[name] = int(n)
	}
	return m
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
