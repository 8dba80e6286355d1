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

// Bounds on the values of a member. A record that exceeds them is rejected and
// shown, never repaired.
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
	if m.Name == "" && view.IsName(m.Znode) {
		m.Name = m.Znode
	}
	m.Name = cmp.Or(m.Name, m.Address())
	m.ID, m.Node = cmp.Or(m.ID, m.Name), cmp.Or(m.Node, m.Host)
	if !view.IsName(m.Name) || !view.IsName(m.ID) || !view.IsName(m.Node) {
		return errors.New("name, id or node: only letters, digits and ._:- are allowed, at most 128, and no - at the beginning")
	}
	if m.Weight < 0 || m.Weight > maxWeight {
		return fmt.Errorf("weight %d is not within 0 to %d", m.Weight, maxWeight)
	}
	m.Status = cmp.Or(m.Status, view.StatusUp)
	if err := validatePorts(m.Ports); err != nil {
		return err
	}
	m.LabelsLeftOut = cmp.Or(m.LabelsLeftOut, keepLabels(m.Labels))
	m.SetLabels(m.Labels)
	return nil
}

func validatePorts(ports map[string]int) error {
	if len(ports) > maxPorts {
		return fmt.Errorf("more than %d ports", maxPorts)
	}
	for name, port := range ports {
		if !keyPattern.MatchString(name) {
			return errors.New("name of a port: only letters, digits and ._- are allowed, at most 128")
		}
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %s: %d is not within 1 to 65535", name, port)
		}
	}
	return nil
}

// keepLabels takes the labels out that a member may not have. It returns which, and
// why; empty when all may stay.
func keepLabels(labels map[string]string) view.RawText {
	first, left, kept := "", 0, 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		problem := ""
		switch value := labels[key]; {
		case !keyPattern.MatchString(key):
			problem = "the key may have only letters, digits and ._-, at most 128"
		case len(value) > maxLabelValue:
			problem = fmt.Sprintf("the value is longer than %d bytes", maxLabelValue)
		case !printable(value):
			problem = "the value has characters that cannot be printed"
		case kept == maxLabels:
			problem = fmt.Sprintf("a member has at most %d labels", maxLabels)
		default:
			kept++
			continue
		}
		if left++; left == 1 {
			first = fmt.Sprintf("label %.60q: %s", key, problem)
		}
		delete(labels, key)
	}
	if left > 1 {
		first += fmt.Sprintf("; and %d more labels", left-1)
	}
	return view.RawText(first)
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
