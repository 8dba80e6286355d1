package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zkagent/zkagent/view"
)

// Bounds on the values of a member.
const (
	maxData       = 64 << 10 // bytes of a member's data
	maxNode       = 4096     // bytes of a znode's name
	maxWeight     = 256
	maxPorts      = 64
	maxLabels     = 64
	maxLabelValue = 256 // bytes
)

// ErrIgnore says that a child is not meant to be a member, such as the vector_
// znodes of a server set.
var ErrIgnore = errors.New("not a member")

var (
	keyPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	// nodePattern allows the characters that the formats put into names of znodes,
	// and none with a special meaning in a shell, a path or a configuration file.
	nodePattern = regexp.MustCompile(`^[A-Za-z0-9._:%+=,~*@-]+$`)
)

// validate converts a decoded member to its canonical form or rejects it.
func validate(m *view.Member) error {
	if len(m.Znode) > maxNode || !nodePattern.MatchString(m.Znode) {
		return errors.New("name of the znode has characters that are not allowed")
	}
	host, err := ParseHost(m.Host)
	if err != nil {
		return err
	}
	m.Host = host
	if m.Port < 0 || m.Port > 65535 {
		return fmt.Errorf("port %d is not within 1 to 65535", m.Port)
	}
	if m.Weight < 0 || m.Weight > maxWeight {
		return fmt.Errorf("weight %d is not within 0 to %d", m.Weight, maxWeight)
	}
	m.Status = cmp.Or(m.Status, view.StatusUp)
	for name, port := range m.Ports {
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %.60q: %d is not within 1 to 65535", name, port)
		}
	}
	var left leftOut
	if m.LabelsLeftOut != "" {
		left.add("%s", string(m.LabelsLeftOut))
	}
	left.names(m)
	left.ports(m.Ports)
	left.labels(m.Labels)
	m.LabelsLeftOut = left.text()
	m.SetLabels(m.Labels)
	return nil
}

// leftOut collects what a record says and its member may not have. It never costs the
// member its place.
type leftOut struct {
	first string
	more  int
}

func (l *leftOut) add(format string, args ...any) {
	if l.first != "" {
		l.more++
		return
	}
	l.first = fmt.Sprintf(format, args...)
}

func (l *leftOut) text() view.RawText {
	if l.more > 0 {
		return view.RawText(fmt.Sprintf("%s; and %d more", l.first, l.more))
	}
	return view.RawText(l.first)
}

// names replaces the names that are none: by the name of the znode, else the address.
func (l *leftOut) names(m *view.Member) {
	for i, name := range []*string{&m.Name, &m.ID, &m.Node} {
		if *name != "" && !view.IsName(*name) {
			l.add("%s %.60q: only letters, digits and ._:- are allowed, at most 128, and no - at the beginning", []string{"name", "id", "node"}[i], *name)
			*name = ""
		}
	}
	if m.Name == "" && view.IsName(m.Znode) {
		m.Name = m.Znode
	}
	m.Name = cmp.Or(m.Name, asName(m.Address()))
	m.ID, m.Node = cmp.Or(m.ID, m.Name), cmp.Or(m.Node, asName(m.Host))
}

// asName makes an address a name: without brackets, and not longer than a name may be.
func asName(address string) string {
	address = strings.NewReplacer("[", "", "]", "").Replace(address)
	return address[:min(len(address), 128)]
}

func (l *leftOut) ports(ports map[string]int) {
	kept := 0
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		switch {
		case !keyPattern.MatchString(name):
			l.add("port %.60q: its name may have only letters, digits and ._-, at most 128", name)
		case kept == maxPorts:
			l.add("port %s: a member has at most %d ports", name, maxPorts)
		default:
			kept++
			continue
		}
		delete(ports, name)
	}
}

func (l *leftOut) labels(labels map[string]string) {
	kept := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		switch value := labels[key]; {
		case !keyPattern.MatchString(key):
			l.add("label %.60q: the key may have only letters, digits and ._-, at most 128", key)
		case len(value) > maxLabelValue:
			l.add("label %s: the value is longer than %d bytes", key, maxLabelValue)
		case !printable(value):
			l.add("label %s: the value has characters that cannot be printed", key)
		case kept == maxLabels:
			l.add("label %s: a member has at most %d labels", key, maxLabels)
		default:
			kept++
			continue
		}
		delete(labels, key)
	}
}

// printable reports whether s is text without control, format and other
// invisible characters; the space is the only white space.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError })
}

// setLabel stores a label of a foreign format if its key and length are within the
// bounds. Other labels are dropped: such formats contain much that no template
// needs.
func setLabel(m *view.Member, key, value string) {
	if value == "" {
		return
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[key] = value
}

// setPort keeps a named port; 0 and -1 are how formats say "none".
func setPort(m *view.Member, name string, port int) {
	if port <= 0 {
		return
	}
	if m.Ports == nil {
		m.Ports = map[string]int{}
	}
	m.Ports[name] = port
}
