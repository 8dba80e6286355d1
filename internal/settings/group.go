package settings

import (
	"net/netip"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/registry"
)

// groupArgs are the arguments of a group, and of each group of a set.
type groupArgs struct {
	Format   hcl.Expression `hcl:"format,optional" is:"string" default:"auto" enum:"auto|nerve|serverset|curator|kafka-broker|patroni|dubbo-url|host-port-name|json|text" doc:"How the members' data is read; auto looks at each member."`
	OnEmpty  hcl.Expression `hcl:"on_empty,optional" is:"string" enum:"keep|render|fail" doc:"What templates do when no member is up: keep the present file, render without members, or fail. Without it a template with an else for the group renders, and another keeps its file."`
	Allow    hcl.Expression `hcl:"allow,optional" is:"list of prefixes" doc:"Networks in which members must be; others are left out and reported. Without it all are taken."`
	MaxBytes hcl.Expression `hcl:"max_bytes,optional" is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data all members may have. Beyond it the last good members stay in use, and the condition source-unusable says by how much."`
	Guard    *guardBlock    `hcl:"guard,block" doc:"When a loss of members is too large to be believed. The guard is on without the block, too."`
}

type groupBlock struct {
	Name string         `hcl:"name,label"`
	At   hcl.Range      `hcl:",def_range"`
	Path hcl.Expression `hcl:"path" is:"znode path" doc:"The znode whose children are the members."`
	groupArgs
}

type groupsBlock struct {
	Name string         `hcl:"name,label"`
	At   hcl.Range      `hcl:",def_range"`
	Path hcl.Expression `hcl:"path" is:"znode path" doc:"The znode whose children are the groups."`
	groupArgs
}

type guardBlock struct {
	At         hcl.Range      `hcl:",def_range"`
	Enabled    hcl.Expression `hcl:"enabled,optional" is:"bool" default:"true" doc:"false believes every loss at once."`
	MaxLoss    hcl.Expression `hcl:"max_loss,optional" is:"percent" default:"30%" min:"1%" max:"100%" doc:"The share of the group whose loss within the window is not believed."`
	MinMembers hcl.Expression `hcl:"min_members,optional" is:"number" default:"3" min:"1" max:"1000000" doc:"A loss of fewer members is always believed."`
	Window     hcl.Expression `hcl:"window,optional" is:"duration" default:"30s" min:"1s" max:"1h" doc:"The time in which members are counted as lost together."`
	Hold       hcl.Expression `hcl:"hold,optional" is:"duration" default:"10m" max:"168h" doc:"How long the members are kept before the loss is believed; 0s keeps them until \"zkagent members accept\"."`
	Probe      hcl.Expression `hcl:"probe,optional" is:"bool" default:"false" doc:"Connect to the members that are kept, by TCP, every 2 s: who cannot be reached three times in a row is believed to be gone."`
}

func (s *Settings) resolveGroups(all *root) {
	for _, b := range all.Groups {
		r := s.read(b, b.At)
		s.Config.Groups = append(s.Config.Groups, registry.GroupConfig{
			Name: b.Name, Path: s.groupPath(r, &b.Path), Format: r.str(&b.Format), OnEmpty: r.str(&b.OnEmpty),
			Allow: s.prefixes(r, &b.Allow), Guard: s.guard(b.Guard), MaxBytes: r.size(&b.MaxBytes), Logger: s.opts.Logger,
		})
	}
	for _, b := range all.GroupSets {
		r := s.read(b, b.At)
		s.Config.GroupSets = append(s.Config.GroupSets, registry.GroupsConfig{
			Name: b.Name, Path: r.znode(&b.Path), Format: r.str(&b.Format), OnEmpty: r.str(&b.OnEmpty),
			Allow: s.prefixes(r, &b.Allow), Guard: s.guard(b.Guard), MaxBytes: r.size(&b.MaxBytes), Logger: s.opts.Logger,
		})
	}
}

// groupPath reads the path of a group, which cannot be the root: its children
// are not members.
func (s *Settings) groupPath(r *reader, p *hcl.Expression) string {
	path := r.znode(p)
	if path == "/" {
		s.errorAt(r.where(p), "Invalid znode path", "The root of ZooKeeper cannot be a group.")
	}
	return path
}

// prefixes reads networks; a single address is a network of one.
func (s *Settings) prefixes(r *reader, p *hcl.Expression) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range r.strings(p) {
		prefix, err := netip.ParsePrefix(text)
		if addr, err2 := netip.ParseAddr(text); err != nil && err2 == nil {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		switch {
		case err != nil:
			s.errorAt(r.where(p), "Invalid network", "%q is not a network; write it as in \"10.0.0.0/8\".", text)
		case prefix != prefix.Masked():
			s.errorAt(r.where(p), "Invalid network", "%q has bits beyond its length; %q was probably meant.", text, prefix.Masked())
		default:
			list = append(list, prefix)
		}
	}
	return list
}

func (s *Settings) guard(b *guardBlock) registry.GuardConfig {
	if b == nil {
		b = &guardBlock{}
	}
	r := s.read(b, b.At)
	c := registry.GuardConfig{
		Off: !r.boolean(&b.Enabled), MaxLoss: r.percent(&b.MaxLoss), MinMembers: r.integer(&b.MinMembers),
		Window: r.duration(&b.Window), Hold: r.duration(&b.Hold), Probe: r.boolean(&b.Probe),
	}
	if c.Hold == 0 {
		c.Hold = -1 // until it is accepted
	}
	return c
}
