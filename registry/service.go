package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/zkagent/zkagent/session"
)

// Formats that can be written.
const (
	FormatNerve     = "nerve"
	FormatServerSet = "serverset"
	FormatCurator   = "curator"
	FormatTemplate  = "template"
)

// The choices for a member whose checks have fallen.
const (
	OnCriticalRemove = "remove" // its znode is deleted
	OnCriticalStatus = "status" // its znode stays, with another status
)

// RunFunc runs one command to its end and returns its output (at most limit bytes)
// and its exit code. When ctx ends, it ends the command and everything that the
// command started. An error means that the command could not run.
type RunFunc func(ctx context.Context, args []string, limit int) (output string, code int, err error)

// ServiceConfig describes one service of this host: a member to register. Do not
// change it after the call of [NewRegistrar]. The zero value of an optional field
// means its default.
type ServiceConfig struct {
	Name   string   // label of the service block
	Groups []string // paths of the group znodes; it is a member of each

	// Address is a host name or IP address; empty: the local address that
	// reaches ZooKeeper.
	Address string
	Port    int            // 1..65535
	Ports   map[string]int // further named ports

	// Format is nerve (default), serverset, curator or template.
	Format string
	// MemberID names the instance, stable over restarts; empty: host name
	// and service name.
	MemberID string
	Weight   *int              // 0..256; nil: none is written
	Labels   map[string]string // written where the format has a place for them

	HAProxyServerOptions string         // nerve: haproxy_server_options
	Shard                *int           // serverset: shard
	Curator              CuratorOptions // curator
	// Template is the text/template of the data for format template, over a
	// [Registration].
	Template string
	// Sequential makes znodes of format template sequential:
	// "<member id>_" and a number.
	Sequential bool

	// ACL is for the member's znode; empty: the session's ACL.
	ACL []session.ACL `json:"-"`

	OnCritical string        // remove (default) or status
	Drain      time.Duration // how long a leaving member is shown as draining
	// WarmUp is how long the weight takes to climb from 1 to Weight after
	// the checks have risen; 0: at once.
	WarmUp time.Duration
	// Splay is the largest delay of the registration in a session that
	// follows a lost one.
	Splay time.Duration

	Checks []CheckConfig
	// StateFile keeps maintenance over restarts; empty: it is forgotten.
	StateFile string
	// Changed is called after each result of a check and each change of the state.
	// It must not block. It may be nil.
	Changed func() `json:"-"`

	Run     RunFunc      `json:"-"` // runs exec checks; nil: a plain one
	Logger  *slog.Logger `json:"-"` // nil: discard
	Metrics *Metrics     `json:"-"` // nil: none
}

var memberID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// Validate returns everything that is wrong with the configuration.
func (c ServiceConfig) Validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(len(c.Groups) == 0, "no group")
	for i, group := range c.Groups {
		err := session.ValidatePath(group)
		refuse(err != nil || group == "/" || slices.Contains(c.Groups[:i], group), "group %q is not the path of a group, or it is there twice", group)
	}
	_, err := ParseHost(c.Address)
	refuse(c.Address != "" && err != nil, "address: %w", err)
	refuse(c.Port < 1 || c.Port > 65535, "port %d is not within 1 to 65535", c.Port)
	refuse(c.MemberID != "" && !memberID.MatchString(c.MemberID),
		"member id %q: only letters, digits and ._:- are allowed, at most 128", c.MemberID)
	refuse(!slices.Contains([]string{"", FormatNerve, FormatServerSet, FormatCurator, FormatTemplate}, c.Format),
		"format %q is not one of nerve, serverset, curator, template", c.Format)
	refuse(!slices.Contains([]string{"", OnCriticalRemove, OnCriticalStatus}, c.OnCritical),
		"on_critical %q is not one of remove, status", c.OnCritical)
	if len(errs) == 0 { // a sample shows the values that the format rejects
		_, err = c.registration(c.Groups[0], "192.0.2.1", "probe").encode(c.format())
		refuse(err != nil, "%w", err)
	}
	names := map[string]bool{}
	for _, check := range c.Checks {
		err := check.Validate()
		refuse(err != nil, "check %q: %w", check.name(), err)
		refuse(names[check.name()], "check %q is there twice: give them names", check.name())
		names[check.name()] = true
	}
	return errors.Join(errs...)
}

func (c ServiceConfig) format() string { return cmp.Or(c.Format, FormatNerve) }

// registration returns the registration of the service in a group when all is well.
func (c ServiceConfig) registration(group, host, id string) Registration {
	return Registration{
		Service: path.Base(group), ID: id, Host: host, Port: c.Port, Ports: c.Ports, Weight: c.Weight, Labels: c.Labels,
		HAProxyServerOptions: c.HAProxyServerOptions, Shard: c.Shard, Curator: c.Curator, Template: c.Template,
	}
}
