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
	"time"

	"github.com/hashicorp/hcl/v2"
	mdns "github.com/miekg/dns"

	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/session/kerberos"
	"github.com/zkagent/zkagent/view"
)

// Session timeouts outside of these are legal and seldom meant: a server
// grants 2 to 20 ticks, 4 s to 40 s by default.
const (
	shortSession = 2 * time.Second
	longSession  = 40 * time.Second
)

func (s *Settings) resolveZooKeeper(d *decoder) {
	ensemble := d.once("zookeeper", "The ensemble. Required as soon as another block uses ZooKeeper.")
	for _, b := range ensemble {
		s.Config.ZooKeeper = s.zooKeeper(b)
	}
	needs := slices.IndexFunc(s.blocks, func(b block) bool {
		return slices.Contains([]string{"service", "config", "group", "groups", "election"}, b.kind)
	})
	if needs >= 0 && len(ensemble) == 0 {
		b := s.blocks[needs]
		s.errorAt(b.at, "Missing zookeeper block", "A %s needs ZooKeeper, and there is no zookeeper block with its address.", strings.ReplaceAll(b.kind, "groups", "set of groups"))
	}
}

func (s *Settings) zooKeeper(b *decoder) session.Config {
	c := session.Config{
		Servers: s.servers(b, b.list("servers", `is:"list of addresses" doc:"The servers of the ensemble; the port is 2181 unless given."`)),
		Chroot:  strings.TrimSuffix(b.text("chroot,optional", `is:"znode path" doc:"Put before every path. It must exist: the agent does not make it, so a typo cannot start an empty tree."`), "/"),
	}
	c.Timeout = b.duration("session_timeout,optional", `is:"duration" default:"10s" min:"200ms" max:"10m" doc:"The session timeout asked for; servers grant 2 to 20 of their ticks."`)
	c.ACL = parsed(b, "acl,optional", `is:"list of strings" doc:"ACL of the znodes that the agent creates, as scheme:id:permissions with the letters cdrwa. The default without auth is open to all; with auth it is world:anyone:r and auth::cdrwa."`, "Invalid ACL", session.ParseACL)
	c.ReadOnly = b.boolean("read_only,optional", `is:"bool" default:"false" doc:"If no server has a majority, continue to read from one that lost it. The agent registers and leads nothing meanwhile. Servers need readonlymode.enabled, localSessionsEnabled and localSessionsUpgradingEnabled."`)
	c.FollowReconfig = b.boolean("follow_reconfig,optional", `is:"bool" default:"false" doc:"Learn the servers from ZooKeeper (/zookeeper/config), as reconfig changes them, and keep them in the state directory. Those learned are tried first, and then servers. With an auth block other than sasl it needs tls: the writer of that znode chooses the servers."`)
	c.StateDir, c.Identity = s.Config.StateDir, s.Config.ID
	switch {
	case c.Timeout < shortSession:
		s.warnAt(b.place("session_timeout"), "Short session timeout", "%s: a busy host or a short pause of the network ends such a session, and members with it.", c.Timeout)
	case c.Timeout > longSession:
		s.warnAt(b.place("session_timeout"), "Long session timeout", "%s: servers grant at most 40 s unless maxSessionTimeout says otherwise, and members of a dead host stay for so long.", c.Timeout)
	}
	var digest []hcl.Range // where blocks send a password as it is
	for _, a := range b.blocks("auth", "scheme", "Who the agent is to ZooKeeper; the label is the scheme: digest, sasl, or another of the servers'. A client certificate (tls) is an identity, too.") {
		sasl := c.SASL
		if s.auth(a, &c); a.label == "digest" {
			digest = append(digest, a.at)
		}
		if sasl != nil && a.label == "sasl" {
			s.errorAt(a.at, "Duplicate auth block", "Only one auth \"sasl\" block is allowed: a connection has one SASL identity.")
		}
	}
	for _, t := range b.once("tls", "Encrypt, and verify the servers. The files are read at every connection, so renewed certificates are used.") {
		files := s.tls(t)
		s.readable(t, map[string]string{"ca_file": files.CAFile, "cert_file": files.CertFile, "key_file": files.KeyFile})
		c.TLS = files.Client
	}
	if c.TLS == nil && slices.ContainsFunc(c.Servers, func(server string) bool { return !isLoopback(server) }) {
		for _, at := range digest {
			s.warnAt(at, "Password in clear", "Without a tls block the password of a digest goes over the network as it is; anybody on the way can take it.")
		}
	}
	if c.FollowReconfig && c.TLS == nil && len(c.Auth) > 0 {
		s.errorAt(b.place("follow_reconfig"), "Servers are not verified", "With follow_reconfig, whoever can write /zookeeper/config leads the agent to another server, which gets its credential. Add a tls block, so that servers are verified.")
	}
	return c
}

func (s *Settings) tls(b *decoder) *registry.TLSConfig {
	c := &registry.TLSConfig{
		CAFile:     b.text("ca_file,optional", `is:"path" doc:"PEM file of the authorities that sign the servers' certificates; the default is the system's."`),
		CertFile:   b.text("cert_file,optional", `is:"path" doc:"PEM file of the agent's certificate."`),
		KeyFile:    b.text("key_file,optional", `is:"path" doc:"PEM file of its key."`),
		ServerName: b.text("server_name,optional", `is:"string" check:"nonempty" doc:"The name in the servers' certificates; the default is the name of the server dialed."`),
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		s.errorAt(b.at, "Incomplete certificate", "cert_file and key_file belong together; give both or neither.")
	}
	return c
}

func (s *Settings) servers(b *decoder, list []string) []string {
	for i, text := range list {
		if err := checkServer(text); err != nil {
			s.errorAt(b.place("servers"), "Invalid server", "%v.", err)
		}
		if slices.Contains(list[:i], text) {
			s.warnAt(b.place("servers"), "Duplicate server", "%q is in the list twice.", text)
		}
	}
	if list != nil && len(list) == 0 {
		s.errorAt(b.place("servers"), "No servers", "The list of servers is empty.")
	}
	return list
}

func (s *Settings) auth(b *decoder, c *session.Config) {
	credential := b.text("credential,optional", `is:"secret" doc:"user:password, for digest and for sasl with DIGEST-MD5; write credential(\"NAME\") to keep it out of this file."`)
	mechanism := b.text("mechanism,optional", `is:"string" enum:"DIGEST-MD5|GSSAPI" doc:"Of sasl: DIGEST-MD5 with a user of the servers' JAAS file, or GSSAPI with Kerberos."`)
	ticket := kerberos.Config{
		Principal:       b.text("principal,optional", `is:"string" doc:"Of GSSAPI: the agent's principal, as in \"zkagent/_HOST@EXAMPLE.ORG\"; _HOST is the host name. A credential cache names its own."`),
		Keytab:          b.text("keytab,optional", `is:"path" doc:"Of GSSAPI: the key table of the principal. It is read at each ticket, so a new key is used."`),
		CredentialCache: b.text("credential_cache,optional", `is:"path" doc:"Of GSSAPI, instead of keytab: a credential cache whose ticket something else keeps valid."`),
		Service:         b.text("service,optional", `is:"string" default:"zookeeper" doc:"For GSSAPI: the first part of the servers' principals, service/HOST, where HOST is as in servers. With a slash it is the whole principal, and _HOST stands for the host."`),
		Conf:            b.text("krb5_conf,optional", `is:"path" doc:"Of GSSAPI: the Kerberos settings. The default is /etc/krb5.conf."`),
	}
	switch {
	case b.label != "sasl":
		if b.label == "" {
			s.errorAt(b.at, "Missing scheme", "The label of an auth block is the scheme, such as \"digest\".")
		}
		if !b.set("credential") {
			s.errorAt(b.at, "Missing credential", "An auth block of scheme %q needs a credential.", b.label)
		}
		s.unused(b, "mechanism", "principal", "keytab", "credential_cache", "krb5_conf")
		s.userPassword(b, credential, b.label == "digest")
		c.Auth = append(c.Auth, session.Auth{Scheme: b.label, Data: []byte(credential)})
	case mechanism == "DIGEST-MD5":
		s.unused(b, "principal", "keytab", "credential_cache", "krb5_conf")
		if !b.set("credential") {
			s.errorAt(b.at, "Missing credential", "DIGEST-MD5 needs a credential, user:password.")
		}
		c.SASL = session.DigestMD5(s.userPassword(b, credential, true))
	case mechanism == "GSSAPI":
		s.unused(b, "credential")
		m, err := kerberos.New(ticket)
		if err != nil {
			s.errorAt(b.at, "Incomplete identity", "%s", sentence(strings.TrimPrefix(err.Error(), "kerberos: ")))
			return
		}
		s.readable(b, map[string]string{"keytab": ticket.Keytab, "credential_cache": ticket.CredentialCache, "krb5_conf": ticket.Conf})
		c.SASL = m
	case !b.set("mechanism"):
		s.errorAt(b.at, "Missing mechanism", "An auth \"sasl\" block needs the mechanism: DIGEST-MD5 or GSSAPI.")
	}
}

func (s *Settings) userPassword(b *decoder, credential string, must bool) (string, string) {
	s.secrets.add(credential)
	user, password, ok := strings.Cut(credential, ":")
	if must && credential != "" && (!ok || user == "") {
		s.errorAt(b.place("credential"), "Invalid credential", "A digest credential is user:password; this one has no user or no colon.")
	}
	return user, password
}

// unused reports arguments that are of another scheme or mechanism.
func (s *Settings) unused(b *decoder, names ...string) {
	for _, name := range names {
		if b.set(name) {
			s.errorAt(b.place(name), "Argument of another mechanism", "The scheme %q has no use for it here; see the reference of the auth block.", b.label)
		}
	}
}

// readable warns of the files of arguments that cannot be read.
func (s *Settings) readable(b *decoder, files map[string]string) {
	for name, path := range files {
		if _, err := os.Stat(path); path != "" && err != nil {
			s.warnAt(b.place(name), "File cannot be read", "%v; connections will fail until it is there.", err)
		}
	}
}

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
