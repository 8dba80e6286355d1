package settings

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/session/kerberos"
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
	c.ReadOnly = b.boolean("read_only,optional", `is:"bool" default:"false" doc:"Continue to read from a server that has lost its majority, when there is no other. The agent registers and leads nothing meanwhile. Servers need readonlymode.enabled, localSessionsEnabled and localSessionsUpgradingEnabled."`)
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

// auth reads an auth block: an identity of its scheme, or the mechanism of sasl.
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
