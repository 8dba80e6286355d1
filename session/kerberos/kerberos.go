// Package kerberos is the SASL mechanism GSSAPI with Kerberos 5 (RFC 4752) for sessions
// with ZooKeeper. It is a separate package, so that programs without Kerberos do not
// contain it.
//
// Guarantees: the client and the server prove their identities to each other. The
// mechanism keeps a service ticket in memory, and every connection uses it. The session
// renews it in the background when a fifth of its life is left. While no KDC answers, the
// mechanism uses the old ticket as long as it is valid. It reads key tables and
// credential caches again for each ticket, so it uses renewed ones.
//
// Not here: protection of the connection (only the quality of protection "auth";
// use TLS), and encryption types older than AES.
package kerberos

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/iana/nametype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/session"
)

// DefaultConf is where the Kerberos settings of a host are.
const DefaultConf = "/etc/krb5.conf"

// Config says who the client is, and how the servers are named.
type Config struct {
	// Principal is the client's, as in "zkagent/_HOST@EXAMPLE.ORG"; _HOST is
	// this host's name. Without a realm it is of the default realm. With a
	// credential cache it may be empty: the cache names it.
	Principal string
	// Keytab or CredentialCache is the path of the file with the client's keys,
	// or with a ticket-granting ticket that something else keeps valid.
	Keytab, CredentialCache string
	// Service is the first part of the servers' principals; "zookeeper" when empty.
	// With a slash it is the whole principal; _HOST in it becomes the host as the
	// session names it.
	Service string
	// Conf is the path of krb5.conf; DefaultConf when empty.
	Conf string
}

// Mechanism is the SASL mechanism. Its methods may be called concurrently.
type Mechanism struct {
	cfg Config

	asking sync.Mutex // held while a KDC is asked; taken before mu

	mu      sync.Mutex // guards tickets
	tickets map[string]*ticket
}

var _ session.SASLRenewer = (*Mechanism)(nil)

type ticket struct {
	realm      string
	cname      types.PrincipalName
	ticket     messages.Ticket
	key        types.EncryptionKey
	began, end time.Time
}

// renewal is when a new ticket should be asked for.
func (t *ticket) renewal() time.Time { return t.end.Add(-t.end.Sub(t.began) / 5) }

func (t *ticket) stale(now time.Time) bool { return t == nil || now.After(t.renewal()) }

func (t *ticket) valid(now time.Time) bool { return t != nil && now.Before(t.end) }

// New checks cfg and returns the mechanism. It does no I/O.
func New(cfg Config) (*Mechanism, error) {
	switch {
	case (cfg.Keytab == "") == (cfg.CredentialCache == ""):
		return nil, errors.New("kerberos: give either a key table or a credential cache")
	case cfg.Keytab != "" && cfg.Principal == "":
		return nil, errors.New("kerberos: a key table needs the principal")
	}
	cfg.Service, cfg.Conf = cmp.Or(cfg.Service, "zookeeper"), cmp.Or(cfg.Conf, DefaultConf)
	return &Mechanism{cfg: cfg, tickets: map[string]*ticket{}}, nil
}

// Name returns "GSSAPI".
func (*Mechanism) Name() string { return "GSSAPI" }

// Prepare gets a ticket for a server, unless it has a valid one.
func (m *Mechanism) Prepare(host string) error {
	spn := m.serverPrincipal(host)
	if m.ticket(spn).valid(time.Now()) {
		return nil
	}
	m.asking.Lock()
	defer m.asking.Unlock()
	if m.ticket(spn).valid(time.Now()) { // another goroutine has got it meanwhile
		return nil
	}
	return m.replace(spn)
}

// Bounds of the time between two tries to get a ticket.
const (
	minRetry = time.Second
	maxRetry = time.Minute
)

// Renew gets a new ticket for a server when the current one is stale. After a failure it
// is tried again, four times in the rest of the old ticket's life, and every minute after
// its end.
func (m *Mechanism) Renew(host string) (time.Duration, error) {
	m.asking.Lock()
	defer m.asking.Unlock()
	spn := m.serverPrincipal(host)
	var err error
	if m.ticket(spn).stale(time.Now()) {
		err = m.replace(spn)
	}
	t, now := m.ticket(spn), time.Now()
	switch {
	case !t.valid(now):
		return maxRetry, err
	case t.stale(now): // a cached one may end no later than the one before
		return min(max(t.end.Sub(now)/4, minRetry), maxRetry), err
	}
	return t.renewal().Sub(now), err
}

func (m *Mechanism) ticket(spn string) *ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tickets[spn]
}

// replace gets a ticket. m.asking is held.
func (m *Mechanism) replace(spn string) error {
	fresh, err := m.ask(spn)
	if err != nil {
		return m.explain(spn, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tickets[spn] = fresh
	return nil
}

// Begin starts the exchange of one connection with the current ticket.
func (m *Mechanism) Begin(host string) (session.SASLExchange, error) {
	t := m.ticket(m.serverPrincipal(host))
	if !t.valid(time.Now()) {
		return nil, errors.New("kerberos: the ticket has expired")
	}
	return &exchange{ticket: t}, nil
}

// serverPrincipal returns the principal of a server, without a realm.
func (m *Mechanism) serverPrincipal(host string) string {
	if !strings.Contains(m.cfg.Service, "/") {
		return m.cfg.Service + "/" + host
	}
	return strings.ReplaceAll(m.cfg.Service, "_HOST", host)
}

func (m *Mechanism) clientPrincipal(conf *config.Config) (string, string, error) {
	name, realm, ok := strings.Cut(m.cfg.Principal, "@")
	if !ok {
		realm = conf.LibDefaults.DefaultRealm
	}
	if strings.Contains(name, "_HOST") {
		host, err := os.Hostname()
		if err != nil {
			return "", "", fmt.Errorf("the host's name: %w", err)
		}
		name = strings.ReplaceAll(name, "_HOST", host)
	}
	return name, realm, nil
}

func (m *Mechanism) ask(spn string) (*ticket, error) {
	var conf *config.Config
	err := load(m.cfg.Conf, func(data []byte) error {
		var err error
		conf, err = config.NewFromString(string(data))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", m.cfg.Conf, err)
	}
	cl, tgt, err := m.login(conf)
	if err != nil {
		return nil, err
	}
	spn, realm, named := strings.Cut(spn, "@")
	if !named {
		_, host, _ := strings.Cut(spn, "/")
		if realm = conf.ResolveRealm(host); realm == "" {
			realm = tgt.realm
		}
	}
	name := types.NewPrincipalName(nametype.KRB_NT_SRV_INST, spn)
	_, rep, err := cl.TGSREQGenerateAndExchange(name, realm, tgt.ticket, tgt.key, false)
	if err != nil {
		return nil, err
	}
	part := rep.DecryptedEncPart
	began := part.StartTime
	if began.IsZero() {
		began = part.AuthTime
	}

	return &ticket{realm: tgt.realm, cname: tgt.cname, ticket: rep.Ticket, key: part.Key, began: began, end: part.EndTime}, nil
}

// login returns the ticket-granting ticket: a new one, or that of the cache.
func (m *Mechanism) login(conf *config.Config) (*client.Client, *ticket, error) {
	if m.cfg.CredentialCache != "" {
		return m.cached(conf)
	}
	name, realm, err := m.clientPrincipal(conf)
	if err != nil {
		return nil, nil, err
	}
	keys := keytab.New()
	if err := load(m.cfg.Keytab, keys.Unmarshal); err != nil {
		return nil, nil, fmt.Errorf("read key table %s: %w", m.cfg.Keytab, err)
	}
	cl := client.NewWithKeytab(name, realm, keys, conf, client.DisablePAFXFAST(true))
	cname := types.NewPrincipalName(nametype.KRB_NT_PRINCIPAL, name)
	req, err := messages.NewASReqForTGT(realm, conf, cname)
	if err != nil {
		return nil, nil, err
	}
	rep, err := cl.ASExchange(realm, req, 0)
	if err != nil {
		return nil, nil, err
	}
	return cl, &ticket{realm: realm, cname: cname, ticket: rep.Ticket, key: rep.DecryptedEncPart.Key}, nil
}

const maxFile = 4 << 20

// load parses a file. A credential cache is in a directory of all users, and kinit writes it
// in place: what is no regular file is not waited for, and a part of one is an error though
// the library's parser panics.
func load(path string, parse func([]byte) error) (err error) {
	data, err := files.ReadNamed(path, maxFile)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("the file is not whole")
		}
	}()
	return parse(data)
}

// cached reads the ticket-granting ticket of a credential cache.
func (m *Mechanism) cached(conf *config.Config) (*client.Client, *ticket, error) {
	cache := &credentials.CCache{}
	if err := load(strings.TrimPrefix(m.cfg.CredentialCache, "FILE:"), cache.Unmarshal); err != nil {
		return nil, nil, fmt.Errorf("read credential cache %s: %w", m.cfg.CredentialCache, err)
	}
	realm, cname := cache.GetClientRealm(), cache.GetClientPrincipalName()
	if m.cfg.Principal != "" {
		name, want, err := m.clientPrincipal(conf)
		if err != nil {
			return nil, nil, err
		}
		if name != cname.PrincipalNameString() || want != realm {
			return nil, nil, fmt.Errorf("credential cache %s is of %s@%s, not of %s@%s", m.cfg.CredentialCache, cname.PrincipalNameString(), realm, name, want)
		}
	}
	entry, ok := cache.GetEntry(types.NewPrincipalName(nametype.KRB_NT_SRV_INST, "krbtgt/"+realm))
	if !ok {
		return nil, nil, fmt.Errorf("credential cache %s has no ticket-granting ticket of %s: run kinit", m.cfg.CredentialCache, realm)
	}
	if time.Now().After(entry.EndTime) {
		return nil, nil, fmt.Errorf("the ticket in credential cache %s ended at %s: run kinit", m.cfg.CredentialCache, entry.EndTime.Format(time.RFC3339))
	}
	cl, err := client.NewFromCCache(cache, conf, client.DisablePAFXFAST(true))
	if err != nil {
		return nil, nil, err
	}
	// The client would renew the ticket in its own goroutine. We get new ones ourselves.
	cl.Destroy()
	cl.Credentials = cache.GetClientCredentials()
	t := &ticket{realm: realm, cname: cname, key: entry.Key}
	if err := t.ticket.Unmarshal(entry.Ticket); err != nil {
		return nil, nil, fmt.Errorf("credential cache %s: %w", m.cfg.CredentialCache, err)
	}
	return cl, t, nil
}

// explain describes an error of a KDC or of the library in words. If only another
// credential or setting can help, the error matches session.ErrAuthFailed.
func (m *Mechanism) explain(spn string, err error) error {
	text := err.Error()
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(s string) bool { return strings.Contains(text, s) })
	}
	switch {
	case has("KDC_ERR_C_PRINCIPAL_UNKNOWN"):
		return fmt.Errorf("%w: the KDC does not know the principal %s: %w", session.ErrAuthFailed, m.cfg.Principal, err)
	case has("KDC_ERR_S_PRINCIPAL_UNKNOWN"):
		return fmt.Errorf("%w: the KDC does not know the server's principal %s: give the name in the server's key table by service: %w", session.ErrAuthFailed, spn, err)
	case has("KRB_AP_ERR_SKEW", "clock skew", "Clock skew"):
		return fmt.Errorf("the clocks of this host and the KDC differ by too much: set them by NTP: %w", err)
	case has("KDC_ERR_KEY_EXPIRED"):
		return fmt.Errorf("%w: the key of %s has expired: change it (kadmin: ktadd), and renew the key table: %w", session.ErrAuthFailed, m.cfg.Principal, err)
	case has("KDC_ERR_CLIENT_REVOKED"):
		return fmt.Errorf("%w: the KDC has locked the principal %s: %w", session.ErrAuthFailed, m.cfg.Principal, err)
	case has("KDC_ERR_ETYPE_NOSUPP"):
		return fmt.Errorf("%w: the KDC and this host have no encryption type in common: AES is needed: %w", session.ErrAuthFailed, err)
	case has("KDC_ERR_PREAUTH_FAILED", "KRB_AP_ERR_BAD_INTEGRITY", "matching key not found", "Decrypting_Error"):
		return fmt.Errorf("%w: the key table %s does not have the present key of %s: %w", session.ErrAuthFailed, m.cfg.Keytab, m.cfg.Principal, err)
	case has("communicat", "Networking_Error"):
		return fmt.Errorf("no KDC answers: %w", err)
	}
	return fmt.Errorf("%w: %w", session.ErrAuthFailed, err)
}
