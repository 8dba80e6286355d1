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
	"strings"
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
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Groups) == 0 {
		bad("no group")
	}
	for i, group := range c.Groups {
		if err := session.ValidatePath(group); err != nil || group == "/" || slices.Contains(c.Groups[:i], group) {
			bad("group %q is not the path of a group, or it is there twice", group)
		}
	}
	if c.Address != "" {
		if _, err := ParseHost(c.Address); err != nil {
			bad("address: %w", err)
		}
	}
	if c.Port < 1 || c.Port > 65535 {
		bad("port %d is not within 1 to 65535", c.Port)
	}
	if c.MemberID != "" && !memberID.MatchString(c.MemberID) {
		bad("member id %q: only letters, digits and ._:- are allowed, at most 128", c.MemberID)
	}
	if !slices.Contains([]string{"", FormatNerve, FormatServerSet, FormatCurator, FormatTemplate}, c.Format) {
		bad("format %q is not one of nerve, serverset, curator, template", c.Format)
	}
	if !slices.Contains([]string{"", OnCriticalRemove, OnCriticalStatus}, c.OnCritical) {
		bad("on_critical %q is not one of remove, status", c.OnCritical)
	}
	if err := c.probe(); err != nil && len(errs) == 0 {
		errs = append(errs, err)
	}
	names := map[string]bool{}
	for i := range c.Checks {
		name := c.Checks[i].name()
		if err := c.Checks[i].Validate(); err != nil {
			bad("check %q: %w", name, err)
		}
		if names[name] {
			bad("check %q is there twice: give them names", name)
		}
		names[name] = true
	}
	return errors.Join(errs...)
}

// probe encodes a sample registration, so that loading the settings finds values
// that the format rejects.
func (c ServiceConfig) probe() error {
	r := c.registration(c.Groups[0], "192.0.2.1", "probe")
	if err := r.validate(); err != nil {
		return err
	}
	_, err := Encode(c.format(), r)
	return err
}

func (c ServiceConfig) format() string { return cmp.Or(c.Format, FormatNerve) }

// registration returns the registration of the service in a group when all is well.
func (c ServiceConfig) registration(group, host, id string) Registration {
	return Registration{
		Service: path.Base(group), ID: id, Host: host, Port: c.Port, Ports: c.Ports, Weight: c.Weight, Labels: c.Labels,
		HAProxyServerOptions: c.HAProxyServerOptions, Shard: c.Shard, Curator: c.Curator, Template: c.Template,
	}
}

func defaultID(host, service string) string {
	id := strings.Map(func(r rune) rune {
		if r < 128 && memberID.MatchString(string(r)) {
			return r
		}
		return '-'
	}, host+"-"+service)
	return id[:min(len(id), 128)]
}
