package settings

import (
	"path"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
)

type configBlock struct {
	Name     string    `hcl:"name,label"`
	At       hcl.Range `hcl:",def_range"`
	Path     text      `hcl:"path" is:"znode path" doc:"The root of the tree."`
	Layout   text      `hcl:"layout,optional" is:"string" default:"auto" enum:"auto|flat|versioned|plain|leaves" doc:"auto follows a flat or a versioned tree and waits for its ready znode; plain is for trees that other tools write, without the ready rule. leaves is plain, but only znodes without children are keys, as confd and remco have it."`
	MaxBytes size      `hcl:"max_bytes,optional" is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"How much data the tree may have. Beyond it the last good tree stays in use, and the condition source-unusable says by how much."`
	Delta    boolean   `hcl:"delta,optional" is:"bool" default:"true" doc:"Learn a small change with the read of ready, which carries the difference, verified by digest. false: contents are taken only from versions and objects, which publishers alone may write."`
	Splay    duration  `hcl:"splay,optional" is:"duration" default:"0s" max:"1h" doc:"Largest random delay before a version is read that is published while the tree is followed, so that a large fleet does not ask ZooKeeper in one instant. For versioned trees."`
}

func (s *Settings) resolveConfigs(blocks []*configBlock) {
	for _, b := range blocks {
		c := config.Config{Name: b.Name, Path: b.Path.Value, Layout: b.Layout.Value, Splay: b.Splay.Value, MaxBytes: b.MaxBytes.Value, NoDelta: !b.Delta.Value, Logger: s.opts.Logger}
		if c.Path == "/" {
			s.errorAt(b.Path.At, "Invalid znode path", "The root of ZooKeeper cannot be a config: it holds everything.")
		}
		if base := path.Base(c.Path); trees.IsReserved(base) && c.Path != "/" && c.Path != "" {
			s.warnAt(b.Path.At, "Reserved name", "The last element of the path, %q, is part of the layout of configs; was %q meant?", base, path.Dir(c.Path))
		}
		s.Config.Configs = append(s.Config.Configs, c)
	}
}
