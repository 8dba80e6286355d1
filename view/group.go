package view

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Status of a member, as its registration says. Templates, JSON, the command
// line and the page use these words. Only members that are up may get traffic.
const (
	StatusUp          = "up"
	StatusDraining    = "draining"    // it finishes its requests and accepts no new ones
	StatusMaintenance = "maintenance" // an operator took it out
	StatusDown        = "down"
)

// Member is one member of a group. All fields are typed and validated, because member
// data is untrusted input.
type Member struct {
	ID      string            `json:"id"`               // stable id of the instance, as far as the format has one
	Node    string            `json:"node"`             // host that registered; the same when it registers again
	Znode   string            `json:"znode"`            // name of the znode
	Name    string            `json:"name"`             // name of the service instance in the format, else Znode
	Host    string            `json:"host"`             // host name or IP address; validated, without brackets
	Port    int               `json:"port"`             // 1..65535; 0 when the format has none
	Ports   map[string]int    `json:"ports,omitempty"`  // further named ports
	Weight  int               `json:"weight"`           // 0..; default 1
	Status  string            `json:"status"`           // up, draining, maintenance, down
	Labels  map[string]string `json:"labels,omitempty"` // labels and tags; each value is a token
	Czxid   int64             `json:"czxid"`            // czxid of the member's znode
	Mzxid   int64             `json:"mzxid"`            // mzxid of the member's znode
	Created time.Time         `json:"created"`          // ctime of the znode

	// Held says that the member is gone from ZooKeeper and that the guard keeps it.
	// Status is then its last status.
	Held bool `json:"held"`
	// Flapping says that the member comes and goes. It is down until it has
	// been quiet for some time.
	Flapping bool `json:"flapping,omitempty"`
	// RawLabels are the labels whose value is not a token. A template must quote them
	// for the file that it writes.
	RawLabels RawLabels `json:"raw_labels,omitempty"`
	// LabelsLeftOut names the first label, name or port that the member has in ZooKeeper
	// and may not have here, with the reason. Empty: all are there.
	LabelsLeftOut RawText `json:"labels_left_out,omitempty"`
}

// RawLabels are labels with any text, by their names.
type RawLabels map[string]string

// String is empty, so that a template which prints a whole member prints no text that
// it did not ask for.
func (RawLabels) String() string { return "" }

// RawText is a text for people that quotes data of others. Like [RawLabels], it
// prints as nothing; convert it to a string.
type RawText string

// String is empty.
func (RawText) String() string { return "" }

// SetLabels gives the member its labels: tokens (at most 256 letters, digits and
// ._:/@+-) become Labels, any other text RawLabels.
func (m *Member) SetLabels(labels map[string]string) {
	m.Labels, m.RawLabels = labels, nil
	for key, value := range labels {
		if isToken(key) && isToken(value) {
			continue
		}
		if m.RawLabels == nil {
			m.Labels, m.RawLabels = maps.Clone(labels), RawLabels{}
		}
		delete(m.Labels, key)
		m.RawLabels[key] = value
	}
}

// isToken reports whether a label is safe in any file: it has no character with a meaning
// in a configuration language or a shell.
func isToken(s string) bool { return len(s) <= 256 && only(s, letters+"/@+") }

// StatusAny selects members of every status.
const StatusAny = "any"

// StatusWords are the words that select members by status.
var StatusWords = []string{StatusUp, StatusDraining, StatusMaintenance, StatusDown, StatusAny}

// WithStatus returns the members that a word of [StatusWords] selects. An empty word
// selects the members that may get traffic. It returns false for any other word.
func WithStatus(members []Member, status string) ([]Member, bool) {
	if !slices.Contains(StatusWords, cmp.Or(status, StatusUp)) {
		return nil, false
	}
	if status == StatusAny {
		return members, true
	}
	var list []Member
	for _, m := range members {
		if status == "" && m.MayServe() || status != "" && m.Status == status {
			list = append(list, m)
		}
	}
	return list, true
}

// MayServe reports whether the member may get traffic: its status is up.
func (m Member) MayServe() bool { return m.Status == StatusUp }

// Address returns host and port joined, with brackets around an IPv6 address. Without a
// port it returns only the host.
func (m Member) Address() string {
	if m.Port == 0 {
		return m.Host
	}
	return net.JoinHostPort(m.Host, strconv.Itoa(m.Port))
}

// Tags returns the sorted names of the labels that are tags: those whose value is empty
// or "true".
func (m Member) Tags() []string {
	tags := []string{}
	for name, v := range m.Labels {
		if isTag(v) {
			tags = append(tags, name)
		}
	}
	slices.Sort(tags)
	return tags
}

// Meta returns the labels that are not tags.
func (m Member) Meta() map[string]string {
	meta := map[string]string{}
	for name, v := range m.Labels {
		if !isTag(v) {
			meta[name] = v
		}
	}
	return meta
}

func isTag(value string) bool { return value == "" || value == "true" }

// Equal reports whether both are the same state of the same member.
func (m Member) Equal(o Member) bool {
	return m.ID == o.ID && m.Node == o.Node && m.Znode == o.Znode && m.Name == o.Name && m.Host == o.Host && m.Port == o.Port &&
		m.Weight == o.Weight && m.Status == o.Status && m.Held == o.Held && m.Flapping == o.Flapping &&
		m.Czxid == o.Czxid && maps.Equal(m.Ports, o.Ports) && maps.Equal(m.Labels, o.Labels) && maps.Equal(m.RawLabels, o.RawLabels) &&
		m.LabelsLeftOut == o.LabelsLeftOut
}

// Rejected is a child of a group that is not accepted as a member, with the reason.
type Rejected struct {
	Znode  string `json:"znode"`
	Reason string `json:"reason"`
}

// Group is the membership of one group at one moment.
type Group struct {
	Name    string   // label of the group block, or the child's name in a set of groups
	Path    string   // group znode
	Members []Member // sorted by host, port, name; without duplicates
	// OnEmpty is the reaction of templates when the group has no members: keep, render or
	// fail.
	OnEmpty string
	// Rejected are children that are not members: garbage, not allowed, duplicate.
	Rejected []Rejected
	// Out says why members do not serve, or serve though they are gone, as of the last
	// change. At most 200 are listed.
	Out []Standing
	// Holding is the time since when the guard keeps members that are gone; zero: it
	// keeps none.
	Holding time.Time
	// Missing says that the group znode does not exist.
	Missing bool
	// Last is the largest czxid, mzxid or pzxid that was read.
	Last int64
}

// Source implements [Update].
func (g *Group) Source() Source { return Source{KindGroup, g.Name} }

// Zxid implements [Update].
func (g *Group) Zxid() int64 { return g.Last }

// Equal implements [Update].
func (g *Group) Equal(other Update) bool {
	o, ok := other.(*Group)
	return ok && o != nil && g.Name == o.Name && g.Path == o.Path && g.OnEmpty == o.OnEmpty &&
		g.Holding.Equal(o.Holding) && g.Missing == o.Missing && slices.Equal(g.Rejected, o.Rejected) && g.SameMembers(o)
}

// SameMembers reports whether both groups hold the same members.
func (g *Group) SameMembers(o *Group) bool {
	return slices.EqualFunc(g.Members, o.Members, Member.Equal)
}

// CompareMembers orders members by host, port, name and znode.
func CompareMembers(a, b Member) int {
	return cmp.Or(CompareHosts(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Znode, b.Znode))
}

// Groups is every child of one znode, each a group.
type Groups struct {
	Name   string   // label of the groups block
	Path   string   // parent znode
	Groups []*Group // sorted by name
	Last   int64    // largest zxid read
	// RawNames are the sorted names of children that are not groups because they are no
	// names ([IsName]). The writers of the parent znode chose them.
	RawNames []string
}

// Source implements [Update].
func (g *Groups) Source() Source { return Source{KindGroups, g.Name} }

// Zxid implements [Update].
func (g *Groups) Zxid() int64 { return g.Last }

// Equal implements [Update].
func (g *Groups) Equal(other Update) bool {
	o, ok := other.(*Groups)
	return ok && o != nil && g.Name == o.Name && g.Path == o.Path && slices.Equal(g.RawNames, o.RawNames) &&
		slices.EqualFunc(g.Groups, o.Groups, func(a, b *Group) bool { return a == b || a.Equal(b) })
}

// Group returns the group of that name in the set.
func (g *Groups) Group(name string) (*Group, bool) {
	i, ok := slices.BinarySearchFunc(g.Groups, name, func(e *Group, n string) int { return cmp.Compare(e.Name, n) })
	if !ok {
		return nil, false
	}
	return g.Groups[i], true
}

// CompareHosts orders addresses as addresses, so 10.0.0.9 comes before 10.0.0.10. Names
// come after addresses, in bytewise order.
func CompareHosts(a, b string) int {
	if a == b {
		return 0
	}
	addrA, errA := netip.ParseAddr(a)
	addrB, errB := netip.ParseAddr(b)
	switch {
	case errA == nil && errB == nil && addrA != addrB:
		return addrA.Compare(addrB)
	case errA == nil && errB != nil:
		return -1
	case errB == nil && errA != nil:
		return 1
	}
	return strings.Compare(a, b)
}

// IsName reports whether a text from ZooKeeper may name something: an id, a group, a
// file. A name has 1 to 128 letters, digits and ._:- and does not begin with -, so it
// means nothing in a configuration file, a shell, a path or a list of arguments. Code
// that reads ZooKeeper applies the rule once, right there. It leaves out and reports a
// name that breaks the rule.
func IsName(s string) bool {
	return s != "" && len(s) <= 128 && s[0] != '-' && s != "." && s != ".." && only(s, letters)
}

// letters are the characters that a name and a token have in common.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"

// only reports whether a text has no other characters than those allowed.
func only(s, allowed string) bool { return strings.Trim(s, allowed) == "" }

// Why a member does not serve, or serves though it is not registered.
const (
	StandingHeld     = "held"     // gone with many others: it serves
	StandingFlapping = "flapping" // it comes and goes: it does not serve
	StandingSpared   = "spared"   // it comes and goes, and serves because too few others do
	StandingGone     = "gone"     // not registered
)

// Standing explains why a member does not serve, or serves though it is not registered.
type Standing struct {
	ID      string    `json:"id"`
	Node    string    `json:"node"`             // host that registered
	Address string    `json:"address"`          // host:port
	Serves  bool      `json:"serves,omitempty"` // it may get traffic all the same
	State   string    `json:"state"`            // held, flapping, spared, gone, or the status that the member has: draining, maintenance, down
	Since   time.Time `json:"since"`            // of the state
	Until   time.Time `json:"until,omitzero"`   // when the state ends if nothing changes
	// Penalty is the charge of a flapping member, after decay. Above Limit a member is
	// flapping.
	Penalty int `json:"penalty,omitempty"`
	Limit   int `json:"limit,omitempty"`
}

// String says the standing in words: "out since 12:03:10: flapping, 2,700 of 2,500, back
// at 12:05:40 if it stays".
func (s Standing) String() string {
	since := s.Since.Local().Format(time.TimeOnly)
	until := s.Until.Local().Format(time.TimeOnly)
	penalty := fmt.Sprintf("%s of %s", thousands(s.Penalty), thousands(s.Limit))
	switch s.State {
	case StandingHeld:
		text := "gone from ZooKeeper with many others since " + since + ": it is kept"
		if !s.Until.IsZero() {
			text += " until " + until
		}
		return text
	case StandingFlapping:
		return fmt.Sprintf("out since %s: flapping, %s, back at %s if it stays", since, penalty, until)
	case StandingSpared:
		return fmt.Sprintf("flapping since %s, %s: it serves because too few others do", since, penalty)
	case StandingGone:
		return "out since " + since + ": not registered"
	case StatusDown:
		return "out since " + since + ": down, as it says itself"
	}
	return "out since " + since + ": " + s.State
}

// thousands prints a number below a million with a comma.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%s", n/1000, strings.TrimPrefix(strconv.Itoa(1000+n%1000), "1"))
}
