package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Limits for a finding: the difference of clocks, the time of a server's answer,
// and the rest of a certificate's life.
const (
	clockFar     = 5 * time.Second
	answerSlow   = 100 * time.Millisecond
	certificates = 14 * 24 * time.Hour
)

// zooKeeper checks each server alone, and then the ensemble.
func (d *doctor) zooKeeper(ctx context.Context) {
	c, err := d.o.ZooKeeper(d.cfg)
	if err != nil {
		if d.cfg != nil && len(d.cfg.ZooKeeper.Servers) == 0 {
			d.add(LevelOK, "zookeeper", "", "the settings use none")
			return
		}
		d.add(LevelFail, "zookeeper", "", err.Error())
		return
	}
	d.certificate(c)
	reached := 0
	for _, server := range c.Servers {
		if d.server(ctx, c, server) {
			reached++
		}
	}
	if d.unreachable = reached == 0; d.unreachable {
		return // The findings of the servers say it.
	}
	dial, cancel := context.WithTimeout(ctx, 2*d.wait())
	defer cancel()
	s, err := session.Dial(dial, c)
	if err != nil {
		d.add(LevelFail, "session", "", err.Error())
		return
	}
	defer s.Close()
	d.add(LevelOK, "session", s.Server(), fmt.Sprintf("negotiated timeout %s", s.Timeout()))
	d.paths(ctx, s, d.identity(ctx, s, &c))
	d.open(ctx, s)
	if !d.o.NoWrite {
		d.write(ctx, s)
	}
}

// server opens a session with one server alone.
func (d *doctor) server(ctx context.Context, c session.Config, server string) bool {
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	c.Servers = []string{server}
	began := time.Now()
	s, err := session.Dial(ctx, c)
	if err != nil {
		d.add(LevelFail, "server", server, Cause(err).Error(), "is ZooKeeper running there, does a firewall drop the connection, is it a TLS port?")
		return false
	}
	defer s.Close()
	connected := time.Since(began)
	if err := s.CheckServer(ctx); errors.Is(err, session.ErrOldServer) {
		d.add(LevelFail, "server", server, err.Error(), "upgrade ZooKeeper: the agent cannot make its znodes there")
		return true
	}
	best := d.wait()
	for range 5 {
		began = time.Now()
		if _, _, err := s.Exists(ctx, "/"); err != nil && !errors.Is(err, session.ErrNoAuth) {
			d.add(LevelFail, "server", server, err.Error())
			return false
		}
		best = min(best, time.Since(began))
	}
	level, text := LevelOK, fmt.Sprintf("session after %s, an answer in %s", term.Short(connected), best.Round(10*time.Microsecond))
	if best > answerSlow {
		level, text = LevelWarn, text+": slow"
	}
	d.add(level, "server", server, text)
	return true
}

// Cause returns why the last server could not be reached, without its address.
func Cause(err error) error {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

func (d *doctor) certificate(c session.Config) {
	if c.TLS == nil {
		return
	}
	conf, err := c.TLS()
	if err != nil {
		d.add(LevelFail, "tls", "", err.Error())
		return
	}
	for _, cert := range conf.Certificates {
		leaf := cert.Leaf // that of the files, which were parsed
		if leaf == nil {
			continue
		}
		level, text := LevelOK, ""
		switch left := time.Until(leaf.NotAfter); {
		case left <= 0:
			level, text = LevelFail, "the certificate has ended: "
		case left < certificates:
			level, text = LevelWarn, "the certificate ends soon: "
		}
		d.add(level, "tls", leaf.Subject.CommonName, text+"valid until "+leaf.NotAfter.UTC().Format(time.RFC3339))
	}
}

// need is a path with what the agent must be able to do there.
type need struct {
	what, path string
	write      bool
}

func (d *doctor) needs() []need {
	if d.cfg == nil {
		return nil
	}
	list := lists.Map(d.cfg.Places(), func(p agent.Place) need {
		return need{string(p.Kind) + " " + p.Name, p.Path, p.Kind == view.KindElection}
	})
	for _, v := range d.cfg.Services {
		for _, group := range v.Groups {
			list = append(list, need{"service " + v.Name, group, true})
		}
	}
	return list
}

func (d *doctor) identity(ctx context.Context, s *session.Session, c *session.Config) []session.Identity {
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	ids, err := s.WhoAmI(ctx)
	switch {
	case errors.Is(err, session.ErrUnimplemented):
		d.add(LevelOK, "identity", "", "the server cannot name our identities: it is older than 3.7")
		return nil
	case err != nil:
		d.add(LevelWarn, "identity", "", err.Error())
		return nil
	}
	proved := slices.DeleteFunc(slices.Clone(ids), func(i session.Identity) bool { return i.Scheme == "ip" })
	switch {
	case c.SASL != nil && !slices.ContainsFunc(proved, func(i session.Identity) bool { return i.Scheme == "sasl" }):
		d.add(LevelFail, "identity", "", fmt.Sprintf("SASL succeeded, but the server lists no sasl identity: %v", ids), "the servers need authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
	case len(proved) == 0:
		d.add(LevelOK, "identity", "", "not authenticated; ACLs can match only this client's IP")
	default:
		d.add(LevelOK, "identity", "", "the server sees "+strings.Trim(fmt.Sprint(proved), "[]"))
	}
	return ids
}

// paths checks the znodes that the settings name, and what their ACLs allow us.
func (d *doctor) paths(ctx context.Context, s *session.Session, ids []session.Identity) {
	for _, n := range d.needs() {
		wait, cancel := context.WithTimeout(ctx, d.wait())
		_, _, err := s.Children(wait, n.path)
		var acl []session.ACL
		if err == nil {
			acl, _, _ = s.GetACL(wait, n.path)
		}
		cancel()
		about := n.what + " " + n.path
		switch {
		case errors.Is(err, session.ErrNoNode) && n.write:
			if d.mayCreate(ctx, s, about, n.path) {
				d.add(LevelOK, "znode", about, "does not exist yet; the agent creates it when it needs it")
			}
		case errors.Is(err, session.ErrNoNode):
			d.add(LevelWarn, "znode", about, "does not exist")
		case err != nil:
			d.add(LevelFail, "znode", about, err.Error(), "the ACL or the credentials do not fit; \"zkagent zk acl "+n.path+"\" shows it")
		default:
			if d.acl(s, about, n, acl, ids) && n.write {
				d.mayCreate(ctx, s, about, session.JoinPath(n.path, "zkagent-doctor"))
			}
		}
	}
}

// mayCreate tests whether we may create a znode at path, or its first missing
// ancestor. The transaction ends with an operation that must fail, so it creates
// nothing.
func (d *doctor) mayCreate(ctx context.Context, s *session.Session, about, missing string) bool {
	if d.o.NoWrite {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	for dir := path.Dir(missing); dir != "/"; dir = path.Dir(dir) {
		if _, ok, err := s.Exists(ctx, dir); err != nil || ok {
			break
		}
		missing = dir
	}
	_, err := s.Multi(ctx, session.CreateOp(missing, nil, session.Persistent), session.CheckOp("/zkagent-"+uuid.NewString(), -1))
	if failed, ok := errors.AsType[*session.MultiError](err); ok && failed.Index == 0 {
		d.add(LevelFail, "znode", about, err.Error())
		if errors.Is(err, session.ErrNoAuth) {
			d.hint("give this agent's identity the permission c on %s; \"zkagent zk acl %s\" shows its ACL", path.Dir(missing), path.Dir(missing))
		} else {
			d.chrootHint(err)
		}
		return false
	}
	return true
}

// chrootHint adds a hint when creating fails because the chroot is missing.
func (d *doctor) chrootHint(err error) {
	if c, cerr := d.o.ZooKeeper(d.cfg); cerr == nil && c.Chroot != "" && errors.Is(err, session.ErrNoNode) {
		d.hint("the chroot %s must exist, and the agent does not create it: zkCli.sh -server %s create %s ''", c.Chroot, c.Servers[0], c.Chroot)
	}
}

func (d *doctor) acl(s *session.Session, about string, n need, acl []session.ACL, ids []session.Identity) bool {
	ours := s.Permissions(acl, ids)
	switch {
	case ids == nil:
		d.add(LevelOK, "acl", about, "readable")
	case n.write && ours&session.PermCreate == 0 && len(acl) > 0:
		d.add(LevelFail, "acl", about, "none of the identities of this host may create children")
		d.hint("give this agent's identity the permission c, or add an auth block; \"zkagent zk acl %s\" shows the ACL", n.path)
		return false
	default:
		d.add(LevelOK, "acl", about, "has the permissions "+session.FormatPermissions(ours))
	}
	return true
}

// write tests our right to write, and reads ZooKeeper's time.
func (d *doctor) write(ctx context.Context, s *session.Session) {
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	path := "/zkagent/doctor-" + uuid.NewString()
	err := s.CreateParents(ctx, path)
	before := time.Now()
	var stat session.Stat
	if err == nil {
		_, stat, err = s.Create(ctx, path, nil, session.Ephemeral)
	}
	if err != nil {
		d.add(LevelFail, "write", "/zkagent", err.Error(), "the agent keeps its status, locks and permits there")
		d.chrootHint(err)
		return
	}
	after := time.Now()
	d.result(LevelWarn, "write", "/zkagent", s.Delete(ctx, path, -1), "created and deleted an ephemeral znode")
	theirs, ours := time.UnixMilli(stat.Ctime), before.Add(after.Sub(before)/2)
	skew := ours.Sub(theirs).Round(time.Millisecond)
	if skew.Abs() > clockFar+after.Sub(before) {
		err = fmt.Errorf("this host and the leader of ZooKeeper differ by %s", skew)
	}
	d.result(LevelWarn, "clock", "", err, fmt.Sprintf("within %s of the leader of ZooKeeper", max(skew.Abs(), time.Millisecond)),
		"schedules and ages are wrong by as much; is a time service running?")
}

// unitStateDir returns the state directory that systemd gives the agent's unit, or ""
// when the unit is not installed. The directory exists only after the first start.
func unitStateDir(root string) string {
	const dir = "/var/lib/zkagent"
	for _, sign := range []string{dir, "/usr/lib/systemd/system/zkagent.service", "/lib/systemd/system/zkagent.service", "/etc/systemd/system/zkagent.service"} {
		if exists(filepath.Join(root, sign)) {
			return dir
		}
	}
	return ""
}

func (d *doctor) stateDir() {
	dir := cmp.Or(d.cfg.StateDir, unitStateDir("/"))
	if dir == "" {
		d.add(LevelWarn, "state", "", "no state_dir: a restart cannot use the last good view, nor take over the session")
		return
	}
	info, err := files.Look(files.File{Destination: dir, Symlink: files.SymlinkFollow})
	switch {
	case errors.Is(err, os.ErrNotExist):
		d.add(LevelOK, "state", dir, "does not exist yet; the agent creates it at its start")
	case err != nil:
		d.add(LevelFail, "state", dir, err.Error())
	case !info.IsDir():
		d.add(LevelFail, "state", dir, "is not a directory")
	case files.CheckOwn(dir) != nil && os.Geteuid() == 0: // The agent may be its owner.
		d.add(LevelWarn, "state", dir, files.CheckOwn(dir).Error(), "that is right if the agent runs as that user: ask as that user, too")
	case files.CheckOwn(dir) != nil:
		d.add(LevelFail, "state", dir, files.CheckOwn(dir).Error())
	default:
		d.result(LevelFail, "state", dir, writable(dir), "writable")
	}
}

func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".zkagent-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

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

// passable reports whether a check of many znodes can skip the one with this error.
func passable(err error) bool {
	return errors.Is(err, session.ErrNoNode) || errors.Is(err, session.ErrNoAuth)
}

// open finds znodes of the settings that every client may change: the named paths,
// everything below them, and their parents, whose ACLs decide who may replace them.
// It skips the root of ZooKeeper, which is open in every ensemble.
func (d *doctor) open(ctx context.Context, s *session.Session) {
	left := openLimit
	seen := map[string]bool{"/": true}
	list := []string{"/zkagent"} // and the highest of the paths that the settings name
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
	for _, root := range roots {
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
	of, recursive, auth := "", "", ""
	if looked > 1 {
		of, recursive = fmt.Sprintf("%d of %s: ", len(open), term.Count(looked, "znode")), " --recursive"
	}
	d.add(LevelWarn, "acl", root, "everybody may change "+of+strings.Join(named, ", "))
	if d.cfg == nil || len(d.cfg.ZooKeeper.Auth) == 0 && d.cfg.ZooKeeper.SASL == nil {
		auth = ", once an auth block gives the agents an identity"
	}
	d.hint("\"zkagent zk acl set %s world:anyone:r auth::cdrwa%s\" closes it%s", root, recursive, auth)
}
