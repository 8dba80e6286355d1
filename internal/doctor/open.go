package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
)

// How many znodes below the paths of the settings the doctor checks, and how many
// it names.
const (
	openLimit = 10_000
	openNamed = 5
)

// OpenZnode is a znode that every client may change.
type OpenZnode struct {
	Path    string
	Perms   int32 // what every client may do besides reading
	Version int32 // of the ACL
}

func openPerms(acl []session.ACL) int32 {
	var perms int32
	for _, a := range acl {
		if a.Scheme == "world" || a.Scheme == "ip" && strings.HasSuffix(a.ID, "/0") {
			perms |= a.Perms
		}
	}
	return perms &^ session.PermRead
}

// OpenZnodes finds the znodes at root and below it that every client may change,
// the highest first. It checks at most limit znodes and returns how many it
// checked. It skips znodes that this session may not read, and znodes that vanish.
func OpenZnodes(ctx context.Context, s *session.Session, root string, limit int) ([]OpenZnode, int, error) {
	var open []OpenZnode
	looked := 0
	level := []string{root}
	for len(level) > 0 && looked < limit {
		level = level[:min(len(level), limit-looked)]
		looked += len(level)
		for _, p := range level {
			acl, stat, err := s.GetACL(ctx, p)
			if passable(err) {
				continue
			}
			if err != nil {
				return nil, looked, err
			}
			if perms := openPerms(acl); perms != 0 {
				open = append(open, OpenZnode{Path: p, Perms: perms, Version: stat.Aversion})
			}
		}
		lists, err := s.ChildrenMany(ctx, level)
		if err != nil {
			return nil, looked, err
		}
		var below []string
		for i, l := range lists {
			if l.Err != nil && !passable(l.Err) {
				return nil, looked, l.Err
			}
			for _, name := range l.Names {
				if len(below) <= limit {
					below = append(below, session.JoinPath(level[i], name))
				}
			}
		}
		slices.Sort(below)
		level = below
	}
	return open, looked, nil
}

// passable reports whether an error concerns only one znode, so that a check of
// many znodes can skip it.
func passable(err error) bool {
	return errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNoAuth)
}

// roots returns the highest of the paths that the settings name, and /zkagent.
func (d *doctor) roots() []string {
	list := []string{"/zkagent"}
	for _, n := range d.needs() {
		list = append(list, n.path)
	}
	slices.Sort(list)
	var roots []string
	for _, p := range list {
		if len(roots) == 0 || !within(p, roots[len(roots)-1:]) {
			roots = append(roots, p)
		}
	}
	return roots
}

// open finds znodes of the settings that every client may change: the named paths,
// everything below them, and their parents, whose ACLs decide who may replace them.
// It skips the root of ZooKeeper, which is open in every ensemble.
func (d *doctor) open(ctx context.Context, s *session.Session) {
	left := openLimit
	seen := map[string]bool{"/": true}
	for _, root := range d.roots() {
		d.openParents(ctx, s, root, seen)
		wait, cancel := context.WithTimeout(ctx, 4*d.wait())
		open, looked, err := OpenZnodes(wait, s, root, left)
		cancel()
		if err != nil {
			d.add(LevelWarn, "acl", root, "cannot check all znodes below: "+err.Error())
			continue
		}
		left -= looked
		d.openFound(root, open, looked)
		if left <= 0 {
			d.add(LevelWarn, "acl", root, fmt.Sprintf("only the first %d znodes were checked", openLimit))
			d.hint("\"zkagent zk acl set %s world:anyone:r auth::cdrwa --recursive\" closes the open znodes below it", root)
			return
		}
	}
}

// openParents checks the znodes above a root.
func (d *doctor) openParents(ctx context.Context, s *session.Session, root string, seen map[string]bool) {
	for dir := path.Dir(root); !seen[dir]; dir = path.Dir(dir) {
		seen[dir] = true
		wait, cancel := context.WithTimeout(ctx, d.wait())
		acl, _, err := s.GetACL(wait, dir)
		cancel()
		// The right to create siblings is harmless.
		if perms := openPerms(acl) &^ session.PermCreate; err == nil && perms != 0 {
			d.openFound(dir, []OpenZnode{{Path: dir, Perms: perms}}, 1)
		}
	}
}

// openFound reports open znodes and how to close them.
func (d *doctor) openFound(root string, open []OpenZnode, looked int) {
	if len(open) == 0 {
		return
	}
	var named []string
	for _, z := range open[:min(len(open), openNamed)] {
		perms := session.FormatACL(session.ACL{Perms: z.Perms})
		named = append(named, fmt.Sprintf("%s (%s)", term.Printable(z.Path), strings.TrimLeft(perms, ":")))
	}
	if len(open) > openNamed {
		named = append(named, "...")
	}
	text := "everybody may change " + strings.Join(named, ", ")
	recursive := ""
	if looked > 1 {
		text = fmt.Sprintf("everybody may change %d of %s: %s", len(open), term.Count(looked, "znode"), strings.Join(named, ", "))
		recursive = " --recursive"
	}
	d.add(LevelWarn, "acl", root, text)
	auth := ""
	if d.cfg == nil || len(d.cfg.ZooKeeper.Auth) == 0 && d.cfg.ZooKeeper.SASL == nil {
		auth = ", once an auth block gives the agents an identity"
	}
	d.hint("\"zkagent zk acl set %s world:anyone:r auth::cdrwa%s\" closes it%s", root, recursive, auth)
}
