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

type zookeeperBlock struct {
	At      hcl.Range    `hcl:",def_range"`
	Servers list         `hcl:"servers" is:"list of addresses" doc:"The servers of the ensemble; the port is 2181 unless given."`
	Chroot  text         `hcl:"chroot,optional" is:"znode path" doc:"Put before every path. It must exist: the agent does not make it, so a typo cannot start an empty tree."`
	Timeout duration     `hcl:"session_timeout,optional" is:"duration" default:"10s" min:"200ms" max:"10m" doc:"The session timeout asked for; servers grant 2 to 20 of their ticks."`
	ACL     list         `hcl:"acl,optional" is:"list of strings" doc:"ACL of the znodes that the agent creates, as scheme:id:permissions with the letters cdrwa. The default without auth is open to all; with auth it is world:anyone:r and auth::cdrwa."`
	RO      boolean      `hcl:"read_only,optional" is:"bool" default:"false" doc:"Continue to read from a server that has lost its majority, when there is no other. The agent registers and leads nothing meanwhile. Servers need readonlymode.enabled, localSessionsEnabled and localSessionsUpgradingEnabled."`
	Follow  boolean      `hcl:"follow_reconfig,optional" is:"bool" default:"false" doc:"Learn the servers from ZooKeeper (/zookeeper/config), as reconfig changes them, and keep them in the state directory. Those learned are tried first, and then servers. With an auth block other than sasl it needs tls: the writer of that znode chooses the servers."`
	Auth    []*authBlock `hcl:"auth,block" doc:"Who the agent is to ZooKeeper; the label is the scheme: digest, sasl, or another of the servers'. A client certificate (tls) is an identity, too."`
	TLS     *tlsBlock    `hcl:"tls,block" doc:"Encrypt, and verify the servers. The files are read at every connection, so renewed certificates are used."`
}

type authBlock struct {
	Scheme     string    `hcl:"scheme,label"`
	At         hcl.Range `hcl:",def_range"`
	Credential text      `hcl:"credential,optional" is:"secret" doc:"user:password, for digest and for sasl with DIGEST-MD5; write credential(\"NAME\") to keep it out of this file."`
	Mechanism  text      `hcl:"mechanism,optional" is:"string" enum:"DIGEST-MD5|GSSAPI" doc:"Of sasl: DIGEST-MD5 with a user of the servers' JAAS file, or GSSAPI with Kerberos."`
	Principal  text      `hcl:"principal,optional" is:"string" doc:"Of GSSAPI: the agent's principal, as in \"zkagent/_HOST@EXAMPLE.ORG\"; _HOST is the host name. A credential cache names its own."`
	Keytab     text      `hcl:"keytab,optional" is:"path" doc:"Of GSSAPI: the key table of the principal. It is read at each ticket, so a new key is used."`
	Cache      text      `hcl:"credential_cache,optional" is:"path" doc:"Of GSSAPI, instead of keytab: a credential cache whose ticket something else keeps valid."`
	Service    text      `hcl:"service,optional" is:"string" default:"zookeeper" doc:"For GSSAPI: the first part of the servers' principals, service/HOST, where HOST is as in servers. With a slash it is the whole principal, and _HOST stands for the host."`
	Krb5Conf   text      `hcl:"krb5_conf,optional" is:"path" doc:"Of GSSAPI: the Kerberos settings. The default is /etc/krb5.conf."`
}

type tlsBlock struct {
	At         hcl.Range `hcl:",def_range"`
	CAFile     text      `hcl:"ca_file,optional" is:"path" doc:"PEM file of the authorities that sign the servers' certificates; the default is the system's."`
	CertFile   text      `hcl:"cert_file,optional" is:"path" doc:"PEM file of the agent's certificate."`
	KeyFile    text      `hcl:"key_file,optional" is:"path" doc:"PEM file of its key."`
	ServerName text      `hcl:"server_name,optional" is:"string" check:"nonempty" doc:"The name in the servers' certificates; the default is the name of the server dialed."`
}

func (s *Settings) resolveZooKeeper(all *root) {
	b := all.ZooKeeper
	if b == nil {
		if at, kind := s.needsServer(); kind != "" {
			s.errorAt(at, "Missing zookeeper block", "A %s needs ZooKeeper, and there is no zookeeper block with its address.", kind)
		} else if s.opts.NeedZooKeeper {
			s.add(&hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Missing zookeeper block", Detail: "There is no zookeeper block with the address of ZooKeeper."})
		}
		return
	}
	c := session.Config{
		Servers: s.servers(b.Servers), Timeout: b.Timeout.Value, ACL: s.acl(b.ACL),
		ReadOnly: b.RO.Value, FollowReconfig: b.Follow.Value, Chroot: strings.TrimSuffix(b.Chroot.Value, "/"),
		StateDir: s.Config.StateDir, Identity: s.Config.ID, Logger: s.opts.Logger,
	}
	switch {
	case c.Timeout < shortSession:
		s.warnAt(b.Timeout.At, "Short session timeout", "%s: a busy host or a short pause of the network ends such a session, and members with it.", c.Timeout)
	case c.Timeout > longSession:
		s.warnAt(b.Timeout.At, "Long session timeout", "%s: servers grant at most 40 s unless maxSessionTimeout says otherwise, and members of a dead host stay for so long.", c.Timeout)
	}
	for _, a := range b.Auth {
		if a.Scheme == "sasl" {
			if c.SASL != nil {
				s.errorAt(a.At, "Duplicate auth block", "Only one auth \"sasl\" block is allowed: a connection has one SASL identity.")
			}
			c.SASL = s.sasl(a)
			continue
		}
		c.Auth = append(c.Auth, s.auth(a))
	}
	if b.TLS != nil {
		t := &registry.TLSConfig{CAFile: b.TLS.CAFile.Value, CertFile: b.TLS.CertFile.Value, KeyFile: b.TLS.KeyFile.Value, ServerName: b.TLS.ServerName.Value}
		s.certificate(b.TLS.At, t)
		s.readable(b.TLS.CAFile, b.TLS.CertFile, b.TLS.KeyFile)
		c.TLS = t.Client
	}
	for _, a := range b.Auth {
		if a.Scheme == "digest" && b.TLS == nil && slices.ContainsFunc(c.Servers, func(server string) bool { return !isLoopback(server) }) {
			s.warnAt(a.At, "Password in clear", "Without a tls block the password of a digest goes over the network as it is; anybody on the way can take it.")
		}
	}
	if c.FollowReconfig && b.TLS == nil && slices.ContainsFunc(b.Auth, func(a *authBlock) bool { return a.Scheme != "sasl" }) {
		s.errorAt(b.Follow.At, "Servers are not verified", "With follow_reconfig, whoever can write /zookeeper/config leads the agent to another server, which gets its credential. Add a tls block, so that servers are verified.")
	}
	s.Config.ZooKeeper = c
}

// needsServer returns the first block that needs ZooKeeper, and what it is called.
func (s *Settings) needsServer() (hcl.Range, string) {
	for _, kind := range []string{"service", "config", "group", "groups", "election"} {
		if i := slices.IndexFunc(s.blocks, func(b block) bool { return b.kind == kind }); i >= 0 {
			return s.blocks[i].at, strings.ReplaceAll(kind, "groups", "set of groups")
		}
	}
	return hcl.Range{}, ""
}

func (s *Settings) servers(servers list) []string {
	list := servers.Value
	for i, text := range list {
		if err := checkServer(text); err != nil {
			s.errorAt(servers.At, "Invalid server", "%v.", err)
		}
		if slices.Contains(list[:i], text) {
			s.warnAt(servers.At, "Duplicate server", "%q is in the list twice.", text)
		}
	}
	if list != nil && len(list) == 0 {
		s.errorAt(servers.At, "No servers", "The list of servers is empty.")
	}
	return list
}

func (s *Settings) acl(written list) []session.ACL {
	var acl []session.ACL
	for _, text := range written.Value {
		a, err := session.ParseACL(text)
		if err != nil {
			s.errorAt(written.At, "Invalid ACL", "%v.", err)
			continue
		}
		acl = append(acl, a)
	}
	return acl
}

func (s *Settings) auth(b *authBlock) session.Auth {
	text := b.Credential.Value
	if b.Scheme == "" {
		s.errorAt(b.At, "Missing scheme", "The label of an auth block is the scheme, such as \"digest\".")
	}
	if !b.Credential.Set {
		s.errorAt(b.At, "Missing credential", "An auth block of scheme %q needs a credential.", b.Scheme)
	}
	s.saslOnly(b, b.Mechanism, b.Principal, b.Keytab, b.Cache, b.Krb5Conf)
	s.userPassword(b, b.Scheme == "digest", text)
	return session.Auth{Scheme: b.Scheme, Data: []byte(text)}
}

func (s *Settings) userPassword(b *authBlock, must bool, text string) (string, string) {
	s.secrets.add(text)
	user, password, ok := strings.Cut(text, ":")
	if must && text != "" && (!ok || user == "") {
		s.errorAt(b.Credential.At, "Invalid credential", "A digest credential is user:password; this one has no user or no colon.")
	}
	return user, password
}

// saslOnly reports arguments that are of another scheme or mechanism.
func (s *Settings) saslOnly(b *authBlock, list ...text) {
	for _, arg := range list {
		if arg.Set {
			s.errorAt(arg.At, "Argument of another mechanism", "The scheme %q has no use for it here; see the reference of the auth block.", b.Scheme)
		}
	}
}

// sasl makes the mechanism of an auth "sasl" block; nil when it is invalid.
func (s *Settings) sasl(b *authBlock) session.SASLMechanism {
	switch mechanism := b.Mechanism.Value; mechanism {
	case "DIGEST-MD5":
		s.saslOnly(b, b.Principal, b.Keytab, b.Cache, b.Krb5Conf)
		text := b.Credential.Value
		if !b.Credential.Set {
			s.errorAt(b.At, "Missing credential", "DIGEST-MD5 needs a credential, user:password.")
		}
		return session.DigestMD5(s.userPassword(b, true, text))
	case "GSSAPI":
		s.saslOnly(b, b.Credential)
		m, err := kerberos.New(kerberos.Config{
			Principal: b.Principal.Value, Keytab: b.Keytab.Value, CredentialCache: b.Cache.Value,
			Service: b.Service.Value, Conf: b.Krb5Conf.Value,
		})
		if err != nil {
			s.errorAt(b.At, "Incomplete identity", "%s", sentence(strings.TrimPrefix(err.Error(), "kerberos: ")))
			return nil
		}
		s.readable(b.Keytab, b.Cache, b.Krb5Conf)
		return m
	case "":
		if !b.Mechanism.Set {
			s.errorAt(b.At, "Missing mechanism", "An auth \"sasl\" block needs the mechanism: DIGEST-MD5 or GSSAPI.")
		}
	}
	return nil
}

func (s *Settings) readable(files ...text) {
	for _, path := range files {
		if _, err := os.Stat(path.Value); path.Value != "" && err != nil {
			s.warnAt(path.At, "File cannot be read", "%v; connections will fail until it is there.", err)
		}
	}
}

func (s *Settings) certificate(at hcl.Range, c *registry.TLSConfig) {
	if (c.CertFile == "") != (c.KeyFile == "") {
		s.errorAt(at, "Incomplete certificate", "cert_file and key_file belong together; give both or neither.")
	}
}
