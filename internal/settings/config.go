package settings

import (
	"path"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/config"
)

type configBlock struct {
	Name     string         `hcl:"name,label"`
	At       hcl.Range      `hcl:",def_range"`
	Path     hcl.Expression `hcl:"path" is:"znode path" doc:"The root of the tree."`
	Layout   hcl.Expression `hcl:"layout,optional" is:"string" default:"auto" enum:"auto|flat|versioned|plain" doc:"auto follows a flat or a versioned tree and waits for its ready znode; plain is for trees that other tools write, without the ready rule."`
	MaxBytes hcl.Expression `hcl:"max_bytes,optional" is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data the tree may have. Beyond it the last good tree stays in use, and the condition source-unusable says by how much."`
	Delta    hcl.Expression `hcl:"delta,optional" is:"bool" default:"true" doc:"Learn a small change with the read of ready, which carries the difference, verified by digest. false: contents are taken only from versions and objects, which publishers alone may write."`
	Splay    hcl.Expression `hcl:"splay,optional" is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a version is read that is published while the tree is followed, so that a large fleet does not ask ZooKeeper in one instant. For versioned trees."`
}

func (s *Settings) resolveConfigs(blocks []*configBlock) {
	for _, b := range blocks {
		r := s.read(b, b.At)
		c := config.Config{Name: b.Name, Path: r.znode(&b.Path), Layout: r.str(&b.Layout), Splay: r.duration(&b.Splay), MaxBytes: r.size(&b.MaxBytes), NoDelta: !r.boolean(&b.Delta), Logger: s.opts.Logger}
		if c.Path == "/" {
			s.errorAt(r.where(&b.Path), "Invalid znode path", "The root of ZooKeeper cannot be a config: it holds everything.")
		}
		if base := path.Base(c.Path); config.IsReserved(base) && c.Path != "/" && c.Path != "" {
			s.warnAt(r.where(&b.Path), "Reserved name", "The last element of the path, %q, is part of the layout of configs; was %q meant?", base, path.Dir(c.Path))
		}
		s.Config.Configs = append(s.Config.Configs, c)
	}
}
