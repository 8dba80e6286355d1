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

// checkPace are the arguments of every check that the agent runs itself.
type checkPace struct {
	Name     hcl.Expression `hcl:"name,optional" is:"string" doc:"Its name in status and metrics; the default is the kind. Two checks of a kind need names."`
	Interval hcl.Expression `hcl:"interval,optional" is:"duration" default:"2s" min:"100ms" max:"24h" doc:"Time between two runs."`
	Timeout  hcl.Expression `hcl:"timeout,optional" is:"duration" default:"1s" min:"10ms" max:"1h" doc:"When a run is ended and counts as failed."`
	Rise     hcl.Expression `hcl:"rise,optional" is:"number" default:"2" min:"1" max:"1000" doc:"Successes in a row until it passes."`
	Fall     hcl.Expression `hcl:"fall,optional" is:"number" default:"3" min:"1" max:"1000" doc:"Failures in a row until it is critical."`
}

type httpCheck struct {
	URL     hcl.Expression `hcl:"url" is:"url" doc:"What is asked for, http or https."`
	Method  hcl.Expression `hcl:"method,optional" is:"string" default:"GET" enum:"GET|HEAD|POST|PUT|OPTIONS" doc:"The method of the request."`
	Headers hcl.Expression `hcl:"headers,optional" is:"map of strings" doc:"Headers of the request; Host sets the host."`
	Status  hcl.Expression `hcl:"status,optional" is:"string" default:"200-399" doc:"The statuses that pass, as in \"200,204,300-308\"."`
	Body    hcl.Expression `hcl:"body,optional" is:"string" doc:"A regular expression that the first 64 kB of the body must match."`
	Follow  hcl.Expression `hcl:"follow_redirects,optional" is:"bool" default:"false" doc:"Follow redirects instead of judging them by their status."`
	TLS     *checkTLS      `hcl:"tls,block" doc:"How an https server is verified."`
	checkPace
}

type tcpCheck struct {
	Address hcl.Expression `hcl:"address" is:"address" doc:"host:port to connect to."`
	checkPace
}

type grpcCheck struct {
	Address hcl.Expression `hcl:"address" is:"address" doc:"host:port of the server, which is asked by the gRPC health protocol."`
	Service hcl.Expression `hcl:"service,optional" is:"string" doc:"The service that is asked for; the default is the whole server."`
	TLS     *checkTLS      `hcl:"tls,block" doc:"Encrypt; without the block the connection is plain."`
	checkPace
}

type execCheck struct {
	Command hcl.Expression `hcl:"command" is:"command" doc:"A program that ends with 0 when all is well."`
	checkPace
}

type ttlCheck struct {
	TTL  hcl.Expression `hcl:"ttl" is:"duration" min:"100ms" max:"24h" doc:"How long a report by \"zkagent check\" is good for."`
	Name hcl.Expression `hcl:"name,optional" is:"string" doc:"As in an http check."`
	Rise hcl.Expression `hcl:"rise,optional" is:"number" default:"1" min:"1" max:"1000" doc:"As in an http check."`
	Fall hcl.Expression `hcl:"fall,optional" is:"number" default:"1" min:"1" max:"1000" doc:"As in an http check."`
}

type checkTLS struct {
	At         hcl.Range      `hcl:",def_range"`
	CAFile     hcl.Expression `hcl:"ca_file,optional" is:"path" doc:"As in the zookeeper block."`
	CertFile   hcl.Expression `hcl:"cert_file,optional" is:"path" doc:"As in the zookeeper block."`
	KeyFile    hcl.Expression `hcl:"key_file,optional" is:"path" doc:"As in the zookeeper block."`
	ServerName hcl.Expression `hcl:"server_name,optional" is:"string" doc:"As in the zookeeper block."`
	Insecure   hcl.Expression `hcl:"insecure,optional" is:"bool" default:"false" doc:"Do not verify the server."`
}

var checkKinds = []string{registry.CheckHTTP, registry.CheckTCP, registry.CheckGRPC, registry.CheckExec, registry.CheckTTL}

// resolveCheck decodes the body by the label and resolves it.
func (s *Settings) resolveCheck(h *checkHeader) (registry.CheckConfig, bool) {
	c := registry.CheckConfig{Kind: h.Kind}
	switch h.Kind {
	case registry.CheckHTTP:
		b := &httpCheck{}
		r := s.decode(h, b)
		c.URL, c.Method, c.Headers = r.checked(&b.URL, "Invalid URL", checkURL), r.str(&b.Method), r.strmap(&b.Headers)
		c.Status, c.Body, c.Follow = r.str(&b.Status), r.str(&b.Body), r.boolean(&b.Follow)
		c.TLS = s.checkTLS(b.TLS)
		s.pace(r, &c, &b.checkPace)
	case registry.CheckTCP:
		b := &tcpCheck{}
		r := s.decode(h, b)
		c.Address = r.checked(&b.Address, "Invalid address", checkHostPort)
		s.pace(r, &c, &b.checkPace)
	case registry.CheckGRPC:
		b := &grpcCheck{}
		r := s.decode(h, b)
		c.Address, c.Service = r.checked(&b.Address, "Invalid address", checkHostPort), r.str(&b.Service)
		c.TLS = s.checkTLS(b.TLS)
		s.pace(r, &c, &b.checkPace)
	case registry.CheckExec:
		b := &execCheck{}
		r := s.decode(h, b)
		if cmd := r.command(&b.Command, vars{}); cmd.Set() {
			c.Command, _ = cmd.Args(command.Vars{})
		}
		s.pace(r, &c, &b.checkPace)
	case registry.CheckTTL:
		b := &ttlCheck{}
		r := s.decode(h, b)
		c.TTL = r.duration(&b.TTL)
		c.Name, c.Rise, c.Fall = r.text(&b.Name), r.integer(&b.Rise), r.integer(&b.Fall)
	default:
		s.errorAt(h.Label, "Unknown kind of check", "There is no check %q; the kinds are %s.%s", h.Kind, quoted(checkKinds), didYouMean(h.Kind, checkKinds))
		return c, false
	}
	return c, true
}

// decode decodes the body of a check.
func (s *Settings) decode(h *checkHeader, raw any) *reader {
	s.add(decode(h.Body, reflect.ValueOf(raw).Elem())...)
	return s.read(raw, h.At)
}

// pace reads the arguments that all kinds of checks share.
func (s *Settings) pace(r *reader, c *registry.CheckConfig, b *checkPace) {
	c.Name, c.Interval, c.Timeout = r.text(&b.Name), r.duration(&b.Interval), r.duration(&b.Timeout)
	c.Rise, c.Fall = r.integer(&b.Rise), r.integer(&b.Fall)
	switch {
	case c.Timeout <= c.Interval:
	case r.isSet(&b.Timeout):
		s.errorAt(r.where(&b.Timeout), "Timeout longer than the interval", "A run may take %s and the next begins after %s; make timeout at most interval.", c.Timeout, c.Interval)
	default:
		c.Timeout = max(c.Interval, 10*time.Millisecond)
	}
}

func (s *Settings) checkTLS(b *checkTLS) *registry.TLSConfig {
	if b == nil {
		return nil
	}
	r := s.read(b, b.At)
	c := &registry.TLSConfig{
		CAFile: r.file(&b.CAFile), CertFile: r.file(&b.CertFile), KeyFile: r.file(&b.KeyFile),
		ServerName: r.text(&b.ServerName), Insecure: r.boolean(&b.Insecure),
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		s.errorAt(b.At, "Incomplete certificate", "cert_file and key_file belong together; give both or neither.")
	}
	return c
}
