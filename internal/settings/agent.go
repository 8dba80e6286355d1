package settings

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	mdns "github.com/miekg/dns"

	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/view"
)

// maxSocketPath is the most that a unix socket's address holds on Linux.
const maxSocketPath = 107

func (s *Settings) resolveAgent(d *decoder) {
	c := &s.Config
	c.Host, _ = s.opts.Hostname()
	for _, b := range d.always("agent", "This agent.") {
		c.ID = cmp.Or(b.text("id,optional", `is:"string" check:"id" default:"" doc:"Name of this agent, unique in the fleet; the default is the host name."`), c.Host)
		c.StateDir = b.text("state_dir,optional", `is:"path" doc:"Directory for data that outlives the process: the session to resume, reloads that are pending, the last good view. The default is $STATE_DIRECTORY; without either the agent has no handoff and no cache."`)
		if c.StateDir == "" {
			// systemd gives a list when the unit names several directories.
			dirs, _ := s.opts.Env("STATE_DIRECTORY")
			c.StateDir, _, _ = strings.Cut(dirs, ":")
		}
		c.OnStop = b.text("on_stop,optional", `is:"string" default:"auto" enum:"auto|leave|hand_over" doc:"Whether a stop ends the session: auto hands the session over when systemd restarts the unit, and leaves otherwise."`)
		c.Env, _ = s.env(b)
		c.NeverCoordinate = !b.boolean("coordinate,optional", `is:"bool" default:"true" doc:"This host may be elected to coordinate rollouts: to grant turns to others. It needs the right to write below rollouts, and ready."`)
		c.ShareDiffs = b.boolean("share_diffs,optional", `is:"bool" default:"false" doc:"Dry runs of a rollout (config plan --fleet) may put differences of files into ZooKeeper, 16 kB a host, for about 20 hosts. Files that not everybody may read are never among them."`)
		c.HistorySize = b.size("history_size,optional", `is:"size" default:"1MiB" min:"0" max:"1GiB" doc:"How many bytes of past files the agent keeps for each template in state_dir, for history, diff and explain; 0 keeps nothing."`)
		c.Splay = b.duration("splay,optional", `is:"duration" default:"0s" max:"1h" doc:"Largest random delay before members are registered again and commands are run, so that a fleet does not act in one instant."`)
	}
	for _, b := range d.always("log", "Where and how it logs.") {
		c.Log.Level = b.text("level,optional", `is:"string" default:"info" enum:"debug|info|warn|error" doc:"The least level that is logged."`)
		c.Log.Format = b.text("format,optional", `is:"string" default:"auto" enum:"auto|text|json" doc:"auto writes text to a terminal and to the journal."`)
	}
	for _, b := range d.once("http", "The page, the metrics and the health checks. Without the block the agent does not listen.") {
		c.HTTP = &web.HTTPConfig{
			Listen:         b.text("listen", `is:"address" check:"listen" doc:"host:port to listen on. An address that is not of the loopback needs allow_remote; every address at once is refused."`),
			Hosts:          b.list("hosts,optional", `is:"list of strings" doc:"Further names that the Host header of a request may carry (against DNS rebinding)."`),
			MaxConnections: b.number("max_connections,optional", `is:"number" default:"1500" min:"4" max:"10000" doc:"Connections at the same time. Three quarters of them may wait for a change or follow a stream; one more gets 503 with Retry-After. Beyond the whole number, the connection that has been idle for the longest is closed."`),
			ShowOutput:     b.boolean("show_output,optional", `is:"bool" default:"false" doc:"Show the output and the arguments of commands, and pending diffs, on the page and in its JSON. The admin socket always shows them."`),
		}
		remote := b.boolean("allow_remote,optional", `is:"bool" default:"false" doc:"Listen where other hosts reach it. The page is read-only and not encrypted: put a proxy with TLS before it."`)
		s.exposed(b.place("listen"), c.HTTP.Listen, remote, "without TLS", "Listen on 127.0.0.1 and put a proxy with TLS before it")
	}
	for _, b := range d.once("dns", "DNS answers from the groups and elections of the settings. Without the block the agent does not listen.") {
		c.DNS = s.resolveDNS(b)
	}
	for _, b := range d.always("admin", "The unix socket that the commands on this host talk to.") {
		socket := b.text("socket,optional", `is:"path" doc:"Path of the unix socket. The default is zkagent.sock in $RUNTIME_DIRECTORY, in /run/zkagent when it exists, or in state_dir."`)
		if len(socket) > maxSocketPath {
			s.errorAt(b.place("socket"), "Socket path too long", "The path has %d bytes; a unix socket's may have at most %d.", len(socket), maxSocketPath)
		}
		c.Admin.Socket = cmp.Or(socket, DefaultSocket(c.StateDir, s.opts.Env))
	}
}

// DefaultSocket is where the agent of this host listens for commands when the
// settings do not say: zkagent.sock in $RUNTIME_DIRECTORY, in /run/zkagent
// when it exists, or below the state directory; empty when there is none.
func DefaultSocket(stateDir string, env func(string) (string, bool)) string {
	if dirs, ok := env("RUNTIME_DIRECTORY"); ok && dirs != "" {
		dir, _, _ := strings.Cut(dirs, ":")
		return filepath.Join(dir, "zkagent.sock")
	}
	if info, err := os.Stat("/run/zkagent"); err == nil && info.IsDir() {
		return "/run/zkagent/zkagent.sock"
	}
	if stateDir != "" {
		return filepath.Join(stateDir, "zkagent.sock")
	}
	return ""
}

// exposed reports an address that other hosts reach although the settings do
// not allow it.
func (s *Settings) exposed(at hcl.Range, listen string, remote bool, how, instead string) {
	host, ip := hostOf(listen)
	switch {
	case listen == "" || isLoopback(listen):
	case host == "" || host == "*" || ip.IsUnspecified():
		s.errorAt(at, "Address is every address", "%q listens on every address of this host, %s. Name one: 127.0.0.1, or the address in one network.", listen, how)
	case !remote:
		s.errorAt(at, "Address is not of the loopback", "%q can be reached from other hosts. %s, or set allow_remote = true.", listen, instead)
	}
}

// hostOf is an address without its port, if it has one; the second result is its IP.
func hostOf(address string) (string, netip.Addr) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, _ := netip.ParseAddr(host)
	return host, ip
}

// isLoopback reports whether only this host can reach the address.
func isLoopback(address string) bool {
	host, ip := hostOf(address)
	return host == "localhost" || ip.IsLoopback()
}

// checkListen checks host:port where port 0 means a free one.
func checkListen(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an address; write it as in \"127.0.0.1:8558\"", text)
	}
	return checkPort(port, 0)
}

// checkID checks an agent id: others take it from ZooKeeper only if it is a name.
func checkID(id string) error {
	if !view.IsName(id) {
		return fmt.Errorf("%q is not allowed: an id has 1 to 128 letters, digits and ._:- and does not begin with -", id)
	}
	return nil
}

func (s *Settings) resolveDNS(b *decoder) *dns.Config {
	c := &dns.Config{
		Listen: b.text("listen", `is:"address" check:"listen" doc:"host:port to listen on, for UDP and TCP. An address that is not of the loopback needs allow_remote; every address at once is refused."`),
		Domain: b.text("domain,optional", `is:"string" check:"domain" default:"zkagent." doc:"Domain of all names."`),
		TTL:    b.duration("ttl,optional", `is:"duration" default:"0s" max:"1h" doc:"How long an answer, or its absence, may be cached. Whole seconds."`),
	}
	c.Recursors = parsed(b, "recursors,optional", `is:"list of strings" doc:"host:port (port 53 by default) of servers that are asked for names outside the domain, in order. Without them such names are refused."`, "Invalid recursor", recursor)
	c.AllowRemote = b.boolean("allow_remote,optional", `is:"bool" default:"false" doc:"Listen where other hosts reach it. They get a bounded rate of answers."`)
	s.exposed(b.place("listen"), c.Listen, c.AllowRemote, "to everybody who can send a packet", "Listen on 127.0.0.1")
	if c.Domain != "" {
		c.Domain = mdns.Fqdn(c.Domain)
	}

	for _, b := range s.blocks {
		if slices.Contains([]string{"group", "groups", "election"}, b.kind) && !dns.IsLabel(b.name) {
			s.warnAt(b.at, "Not a DNS label", "%s %q has no DNS name: a label has 1 to 63 letters, digits, - and _, and does not begin or end with -.", b.kind, b.name)
		}
	}
	return c
}

func checkDomain(text string) error {
	name := strings.TrimSuffix(text, ".")
	if name == "" {
		return fmt.Errorf("%q is not a domain; write it as in \"zkagent.\"", text)
	}
	for label := range strings.SplitSeq(name, ".") {
		if !dns.IsLabel(label) {
			return fmt.Errorf("%q is not a domain: %q cannot be one of its labels", text, label)
		}
	}
	return nil
}

// recursor completes the address of a server with the port.
func recursor(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "53"
	}
	if net.ParseIP(host) == nil {
		return "", fmt.Errorf("%q is not an IP address: a recursor cannot be found by a name; write it as in \"10.0.0.2:53\"", host)
	}
	return net.JoinHostPort(host, port), checkPort(port, 1)
}
