package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/internal/mirror"
	"github.com/zkagent/zkagent/view"
)

// ErrTooLarge is matched by the error of a group with more data than GroupConfig.MaxBytes.
var ErrTooLarge = errors.New("the group is too large")

const (
	// grace is how long a change of a member waits for a change of the list. When a
	// member leaves, both change, and there is nothing to read.
	grace = 10 * time.Millisecond
	// recheckFew is how many members are looked at every 30 to 60 seconds without an event.
	recheckFew = 2
)

// copyOptions are the options of the mirror that the group is read from.
func (c GroupConfig) copyOptions() mirror.Options {
	return mirror.Options{
		Depth: 1, MaxBytes: max(c.MaxBytes, 0), Settle: grace, Recheck: recheckFew,
		MaxChildren: func(string) int { return c.MaxMembers },
	}
}

// roster is the members of one group as they are registered, read in one session.
//
// Its work for a change is proportional to the change, except for walks along lists
// of pointers. Groups have up to 10,000 members.
type roster struct {
	cfg *GroupConfig
	log *slog.Logger
	dec decoder

	missing bool // the group znode does not exist
	stale   bool // not read yet, or too large: what is registered is not known
	last    int64

	nodes      map[string]*view.Member // the members by the names of their znodes
	reasons    map[string]string       // why other children are no members
	unreadable map[string]string       // likewise, of those that cannot be read
	over       []string                // names beyond the limit

	// The last result of members, and what has changed since: names, each with its
	// member in set.
	set      members
	rejected []view.Rejected
	doubles  []view.Rejected
	touched  map[string]*view.Member
	changed  bool
}

func (g *Group) newRoster() *roster {
	return &roster{
		cfg: &g.cfg, log: g.log, dec: g.dec, stale: true, changed: true, nodes: map[string]*view.Member{},
		reasons: map[string]string{}, touched: map[string]*view.Member{},
	}
}

// take takes in the children of the znode at rel that changed, and the errors of those
// that cannot be read. It returns why the group cannot be used: it cannot be listed, or
// is too large.
func (r *roster) take(snap *mirror.Snapshot, rel string, names []string, errs map[string]error) error {
	node, there := snap.Get(rel)
	bytes, large := snap.Size(rel)
	r.last = snap.Last
	if large {
		const mib = 1 << 20
		r.stale = true
		return fmt.Errorf("%w: its members have %.1f MiB of data, max_bytes allows %.1f MiB; the last good members stay in use",
			ErrTooLarge, float64(bytes)/mib, float64(r.cfg.MaxBytes)/mib)
	}
	err := errs[""]
	if err != nil {
		err = fmt.Errorf("read the group %s: %w", r.cfg.Path, err)
	}
	if r.stale {
		if err != nil {
			return err
		}
		r.stale = false
		names = slices.Concat(slices.Collect(maps.Keys(r.nodes)), slices.Collect(maps.Keys(r.reasons)), node.Children)
	}
	for _, name := range names {
		r.takeChild(snap, name, path.Join(rel, name))
	}
	if r.missing != !there || !slices.Equal(r.over, node.Over) {
		r.missing, r.over, r.changed = !there, node.Over, true
	}
	r.takeErrors(errs)
	return err
}

func (r *roster) takeChild(snap *mirror.Snapshot, name, rel string) {
	was := r.nodes[name]
	if _, noted := r.touched[name]; !noted {
		r.touched[name] = was
	}
	r.changed = true
	delete(r.nodes, name)
	node, there := snap.Get(rel)
	if !there {
		delete(r.reasons, name)
		return
	}
	switch m, err := r.judge(name, node); {
	case err == nil:
		r.nodes[name] = m
		delete(r.reasons, name)
	case errors.Is(err, ErrIgnore):
		delete(r.reasons, name)
	default:
		reason := clip(err.Error())
		r.warn(name, reason, r.reasons[name])
		r.reasons[name] = reason
	}
}

// takeErrors takes in which children cannot be read. One that could be read before stays
// a member.
func (r *roster) takeErrors(errs map[string]error) {
	if len(errs) == 0 && len(r.unreadable) == 0 {
		return
	}
	was := r.unreadable
	r.unreadable, r.changed = map[string]string{}, true
	for name, err := range errs {
		ignored := r.dec(new(view.Member), name, nil)
		if name != "" && !errors.Is(ignored, ErrIgnore) {
			r.unreadable[name] = clip("not readable: " + err.Error())
			r.warn(name, r.unreadable[name], was[name])
		}
	}
}

// warn logs why a child is not a member, once per reason.
func (r *roster) warn(name, reason, former string) {
	if reason != former {
		r.log.Warn("child of the group is not a member", "group", r.cfg.Name, "path", r.cfg.Path, "member", clipName(name), "reason", reason)
	}
}

func (r *roster) judge(name string, node mirror.Node) (*view.Member, error) {
	m, err := decodeWith(r.dec, name, node.Data)
	if err != nil {
		return nil, err
	}
	if !r.cfg.allowed(m.Host) {
		return nil, fmt.Errorf("address %s is not within the allowed subnets", m.Host)
	}
	if host, ok := strings.CutSuffix(m.Node, "-"+path.Base(r.cfg.Path)); ok && host != "" {
		m.Node = host // the default member id of a registrar
	}
	m.Czxid, m.Mzxid, m.Created = node.Stat.Czxid, node.Stat.Mzxid, time.UnixMilli(node.Stat.Ctime)
	return &m, nil
}

func (r *roster) members() (members, []view.Rejected) {
	if !r.changed {
		return r.set, r.rejected
	}
	if !r.merge() {
		r.set, r.doubles = dedupe(slices.Collect(maps.Values(r.nodes)))
	}
	clear(r.touched)
	r.changed = false
	r.rejected = slices.Clone(r.doubles)
	for _, reasons := range []map[string]string{r.reasons, r.unreadable} {
		for name, reason := range reasons {
			r.rejected = append(r.rejected, view.Rejected{Znode: clipName(name), Reason: reason})
		}
	}
	for _, name := range r.over {
		r.rejected = append(r.rejected, view.Rejected{Znode: clipName(name), Reason: fmt.Sprintf("more than %d children", r.cfg.MaxMembers)})
	}
	slices.SortFunc(r.rejected, func(a, b view.Rejected) int { return strings.Compare(a.Znode, b.Znode) })
	return r.set, r.rejected
}

// merge applies the touched children to set. It returns false where two children
// are the same member, because then the one that was left out may have to replace
// the other.
func (r *roster) merge() bool {
	if len(r.doubles) > 0 || len(r.touched) > len(r.set)/2 {
		return false
	}
	var gone, came members
	for name, was := range r.touched {
		if was != nil {
			gone = append(gone, was)
		}
		if m := r.nodes[name]; m != nil {
			came = append(came, m)
		}
	}
	came, doubles := dedupe(came)
	if len(doubles) > 0 {
		return false
	}
	set := r.set.without(gone)
	if slices.ContainsFunc(came, set.has) {
		return false
	}
	r.set = set.with(came)
	return true
}

// clipName shortens the name of a child for display.
func clipName(name string) string {
	if len(name) > 256 {
		return strings.ToValidUTF8(name[:256], "") + "..."
	}
	return name
}
