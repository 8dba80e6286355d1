package settings

import (
	"github.com/hashicorp/hcl/v2"
)

// resolve resolves all blocks, in an order in which what is used by others
// comes first.
func (s *Settings) resolve(all *root) {
	s.claims = map[string]claimed{}
	s.paths = map[string]map[string]claimed{}
	s.resolveAgent(all)
	s.resolveZooKeeper(all)
	s.resolveServices(all.Services)
	s.resolveConfigs(all.Configs)
	s.resolveGroups(all)
	s.resolveElections(all.Elections)
	s.resolveBundles(all)
	s.resolveHooks(all.Hooks)
	s.resolveExecs(all.Execs)
}

// samePath reports two blocks of one kind that use the same znode.
func (s *Settings) samePath(kind, name, path string, at hcl.Range) {
	if path == "" {
		return
	}
	if s.paths[kind] == nil {
		s.paths[kind] = map[string]claimed{}
	}
	if first, ok := s.paths[kind][path]; ok {
		s.errorAt(at, "Two blocks with one path", "%s %q already uses %s, at %s.", kind, first.name, path, place(first.at))
		return
	}
	s.paths[kind][path] = claimed{name, at}
}
