package settings

import (
	"reflect"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/registry"
)

// checkHeader is a check block whose label picks what its body may hold.
type checkHeader struct {
	Kind  string    `hcl:"kind,label"`
	At    hcl.Range `hcl:",def_range"`
	Label hcl.Range `hcl:"kind,label_range"`
	Body  hcl.Body  `hcl:",remain"`
}

type checkPace struct {
	Name     text     `hcl:"name,optional" is:"string" check:"nonempty" doc:"Its name in status and metrics; the default is the kind. Two checks of a kind need names."`
	Interval duration `hcl:"interval,optional" is:"duration" default:"2s" min:"100ms" max:"24h" doc:"Time between two runs."`
	Timeout  duration `hcl:"timeout,optional" is:"duration" default:"1s" min:"10ms" max:"1h" doc:"When a run is ended and counts as failed."`
	Rise     number   `hcl:"rise,optional" is:"number" default:"2" min:"1" max:"1000" doc:"Successes in a row until it passes."`
	Fall     number   `hcl:"fall,optional" is:"number" default:"3" min:"1" max:"1000" doc:"Failures in a row until it is critical."`
}

type httpCheck struct {
	URL     text      `hcl:"url" is:"url" doc:"Address to request, http or https."`
	Method  text      `hcl:"method,optional" is:"string" default:"GET" enum:"GET|HEAD|POST|PUT|OPTIONS" doc:"The method of the request."`
	Headers textMap   `hcl:"headers,optional" is:"map of strings" doc:"Headers of the request; Host sets the host."`
	Status  text      `hcl:"status,optional" is:"string" default:"200-399" doc:"The statuses that pass, as in \"200,204,300-308\"."`
	Body    text      `hcl:"body,optional" is:"string" doc:"A regular expression that the first 64 kB of the body must match."`
	Follow  boolean   `hcl:"follow_redirects,optional" is:"bool" default:"false" doc:"Follow redirects instead of judging them by their status."`
	TLS     *checkTLS `hcl:"tls,block" doc:"How an https server is verified."`
	checkPace
}

type tcpCheck struct {
	Address text `hcl:"address" is:"address" doc:"host:port to connect to."`
	checkPace
}

type grpcCheck struct {
	Address text      `hcl:"address" is:"address" doc:"host:port of the server, which is asked by the gRPC health protocol."`
	Service text      `hcl:"service,optional" is:"string" doc:"The service that is asked for; the default is the whole server."`
	TLS     *checkTLS `hcl:"tls,block" doc:"Encrypt; without the block the connection is plain."`
	checkPace
}

type execCheck struct {
	Command expression `hcl:"command" is:"command" doc:"A program that exits with 0 when all is well."`
	checkPace
}

type ttlCheck struct {
	TTL  duration `hcl:"ttl" is:"duration" min:"100ms" max:"24h" doc:"How long a report by \"zkagent check\" is good for."`
	Name text     `hcl:"name,optional" is:"string" check:"nonempty" doc:"As in every check."`
	Rise number   `hcl:"rise,optional" is:"number" default:"1" min:"1" max:"1000" doc:"As in every check."`
	Fall number   `hcl:"fall,optional" is:"number" default:"1" min:"1" max:"1000" doc:"As in every check."`
}

type checkTLS struct {
	At         hcl.Range `hcl:",def_range"`
	CAFile     text      `hcl:"ca_file,optional" is:"path" doc:"As in the zookeeper block."`
	CertFile   text      `hcl:"cert_file,optional" is:"path" doc:"As in the zookeeper block."`
	KeyFile    text      `hcl:"key_file,optional" is:"path" doc:"As in the zookeeper block."`
	ServerName text      `hcl:"server_name,optional" is:"string" check:"nonempty" doc:"As in the zookeeper block."`
	Insecure   boolean   `hcl:"insecure,optional" is:"bool" default:"false" doc:"Do not verify the server."`
}

var checkKinds = []string{registry.CheckHTTP, registry.CheckTCP, registry.CheckGRPC, registry.CheckExec, registry.CheckTTL}

func (s *Settings) resolveCheck(h *checkHeader) (registry.CheckConfig, bool) {
	c := registry.CheckConfig{Kind: h.Kind}
	switch h.Kind {
	case registry.CheckHTTP:
		b := decodeCheck[httpCheck](s, h)
		c.URL, c.Method, c.Headers = b.URL.Value, b.Method.Value, b.Headers.Value
		c.Status, c.Body, c.Follow = b.Status.Value, b.Body.Value, b.Follow.Value
		c.TLS = s.checkTLS(b.TLS)
		s.pace(&c, &b.checkPace)
	case registry.CheckTCP:
		b := decodeCheck[tcpCheck](s, h)
		c.Address = b.Address.Value
		s.pace(&c, &b.checkPace)
	case registry.CheckGRPC:
		b := decodeCheck[grpcCheck](s, h)
		c.Address, c.Service = b.Address.Value, b.Service.Value
		c.TLS = s.checkTLS(b.TLS)
		s.pace(&c, &b.checkPace)
	case registry.CheckExec:
		b := decodeCheck[execCheck](s, h)
		if cmd := s.command(b.Command, vars{}); cmd.Set() {
			c.Command, _ = cmd.Args(command.Vars{})
		}
		s.pace(&c, &b.checkPace)
	case registry.CheckTTL:
		b := decodeCheck[ttlCheck](s, h)
		c.TTL = b.TTL.Value
		c.Name, c.Rise, c.Fall = b.Name.Value, b.Rise.Value, b.Fall.Value
	default:
		s.errorAt(h.Label, "Unknown kind of check", "There is no check %q; the kinds are %s.%s", h.Kind, quoted(checkKinds), didYouMean(h.Kind, checkKinds))
		return c, false
	}
	return c, true
}

func decodeCheck[T any](s *Settings, h *checkHeader) *T {
	b := new(T)
	s.decode(h.Body, h.At, reflect.ValueOf(b).Elem())
	return b
}

func (s *Settings) pace(c *registry.CheckConfig, b *checkPace) {
	c.Name, c.Interval, c.Timeout = b.Name.Value, b.Interval.Value, b.Timeout.Value
	c.Rise, c.Fall = b.Rise.Value, b.Fall.Value
	switch {
	case c.Timeout <= c.Interval:
	case b.Timeout.Set:
		s.errorAt(b.Timeout.At, "Timeout longer than the interval", "A run may take %s and the next begins after %s; make timeout at most interval.", c.Timeout, c.Interval)
	default:
		c.Timeout = max(c.Interval, 10*time.Millisecond)
	}
}

func (s *Settings) checkTLS(b *checkTLS) *registry.TLSConfig {
	if b == nil {
		return nil
	}
	c := &registry.TLSConfig{
		CAFile: b.CAFile.Value, CertFile: b.CertFile.Value, KeyFile: b.KeyFile.Value,
		ServerName: b.ServerName.Value, Insecure: b.Insecure.Value,
	}
	s.certificate(b.At, c)
	return c
}
