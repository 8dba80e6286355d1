package settings

import (
	"time"

	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/registry"
)

var checkKinds = []string{registry.CheckHTTP, registry.CheckTCP, registry.CheckGRPC, registry.CheckExec, registry.CheckTTL}

// resolveCheck reads a check block, whose label picks what it takes.
func (s *Settings) resolveCheck(b *decoder) (registry.CheckConfig, bool) {
	c := registry.CheckConfig{Kind: b.label}
	switch b.label {
	case registry.CheckHTTP:
		c.URL = b.text("url", `is:"url" doc:"Address to request, http or https."`)
		c.Method = b.text("method,optional", `is:"string" default:"GET" enum:"GET|HEAD|POST|PUT|OPTIONS" doc:"The method of the request."`)
		c.Headers = b.textMap("headers,optional", `is:"map of strings" doc:"Headers of the request; Host sets the host."`)
		c.Status = b.text("status,optional", `is:"string" default:"200-399" doc:"The statuses that pass, as in \"200,204,300-308\"."`)
		c.Body = b.text("body,optional", `is:"string" doc:"A regular expression that the first 64 kB of the body must match."`)
		c.Follow = b.boolean("follow_redirects,optional", `is:"bool" default:"false" doc:"Follow redirects instead of judging them by their status."`)
		c.TLS = s.checkTLS(b, "How an https server is verified.")
	case registry.CheckTCP:
		c.Address = b.text("address", `is:"address" doc:"host:port to connect to."`)
	case registry.CheckGRPC:
		c.Address = b.text("address", `is:"address" doc:"host:port of the server, which is asked by the gRPC health protocol."`)
		c.Service = b.text("service,optional", `is:"string" doc:"The service that is asked for; the default is the whole server."`)
		c.TLS = s.checkTLS(b, "Encrypt; without the block the connection is plain.")
	case registry.CheckExec:
		if cmd := s.command(b.expression("command", `is:"command" doc:"A program that exits with 0 when all is well."`), vars{}); cmd.Set() {
			c.Command, _ = cmd.Args(command.Vars{})
		}
	case registry.CheckTTL:
		c.TTL = b.duration("ttl", `is:"duration" min:"100ms" max:"24h" doc:"How long a report by \"zkagent check\" is good for."`)
		c.Name = b.text("name,optional", `is:"string" check:"nonempty" doc:"As in every check."`)
		c.Rise = b.number("rise,optional", `is:"number" default:"1" min:"1" max:"1000" doc:"As in every check."`)
		c.Fall = b.number("fall,optional", `is:"number" default:"1" min:"1" max:"1000" doc:"As in every check."`)
		return c, true
	default:
		s.errorAt(b.labelAt, "Unknown kind of check", "There is no check %q; the kinds are %s.%s", b.label, quoted(checkKinds), didYouMean(b.label, checkKinds))
		b.body = nil // what it may hold is not known
		return c, false
	}
	s.pace(&c, b)
	return c, true
}

// pace reads the arguments that every kind of check but ttl takes.
func (s *Settings) pace(c *registry.CheckConfig, b *decoder) {
	b.common = true
	c.Name = b.text("name,optional", `is:"string" check:"nonempty" doc:"Its name in status and metrics; the default is the kind. Two checks of a kind need names."`)
	c.Interval = b.duration("interval,optional", `is:"duration" default:"2s" min:"100ms" max:"24h" doc:"Time between two runs."`)
	c.Timeout = b.duration("timeout,optional", `is:"duration" default:"1s" min:"10ms" max:"1h" doc:"When a run is ended and counts as failed."`)
	c.Rise = b.number("rise,optional", `is:"number" default:"2" min:"1" max:"1000" doc:"Successes in a row until it passes."`)
	c.Fall = b.number("fall,optional", `is:"number" default:"3" min:"1" max:"1000" doc:"Failures in a row until it is critical."`)
	switch {
	case c.Timeout <= c.Interval:
	case b.set("timeout"):
		s.errorAt(b.place("timeout"), "Timeout longer than the interval", "A run may take %s and the next begins after %s; make timeout at most interval.", c.Timeout, c.Interval)
	default:
		c.Timeout = max(c.Interval, 10*time.Millisecond)
	}
}

func (s *Settings) checkTLS(d *decoder, doc string) *registry.TLSConfig {
	var c *registry.TLSConfig
	for _, b := range d.once("tls", doc) {
		c = &registry.TLSConfig{
			CAFile:     b.text("ca_file,optional", `is:"path" doc:"As in the zookeeper block."`),
			CertFile:   b.text("cert_file,optional", `is:"path" doc:"As in the zookeeper block."`),
			KeyFile:    b.text("key_file,optional", `is:"path" doc:"As in the zookeeper block."`),
			ServerName: b.text("server_name,optional", `is:"string" check:"nonempty" doc:"As in the zookeeper block."`),
			Insecure:   b.boolean("insecure,optional", `is:"bool" default:"false" doc:"Do not verify the server."`),
		}
		s.certificate(b.at, c)
	}
	return c
}
