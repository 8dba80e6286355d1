package settings

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	mdns "github.com/miekg/dns"

	"github.com/zkagent/zkagent/internal/dns"
)

type dnsBlock struct {
	At        hcl.Range `hcl:",def_range"`
	Listen    text      `hcl:"listen" is:"address" check:"listen" doc:"host:port to listen on, for UDP and TCP. An address that is not of the loopback needs allow_remote; every address at once is refused."`
	Domain    text      `hcl:"domain,optional" is:"string" check:"domain" default:"zkagent." doc:"Domain of all names."`
	TTL       duration  `hcl:"ttl,optional" is:"duration" default:"0s" max:"1h" doc:"How long an answer, or its absence, may be cached. Whole seconds."`
	Recursors list      `hcl:"recursors,optional" is:"list of strings" doc:"host:port (port 53 by default) of servers that are asked for names outside the domain, in order. Without them such names are refused."`
	Remote    boolean   `hcl:"allow_remote,optional" is:"bool" default:"false" doc:"Listen where other hosts reach it. They get a bounded rate of answers."`
}

func (s *Settings) resolveDNS(b *dnsBlock) *dns.Config {
	c := &dns.Config{TTL: b.TTL.Value, AllowRemote: b.Remote.Value}
	c.Listen = b.Listen.Value
	s.exposed(b.Listen.At, c.Listen, c.AllowRemote, "to everybody who can send a packet", "Listen on 127.0.0.1")
	c.Domain = b.Domain.Value
	if c.Domain != "" {
		c.Domain = mdns.Fqdn(c.Domain)
	}
	for _, server := range b.Recursors.Value {
		address, err := recursor(server)
		if err != nil {
			s.errorAt(b.Recursors.At, "Invalid recursor", "%s.", err)
		}
		c.Recursors = append(c.Recursors, address)
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
		return fmt.Errorf("%q is no domain; write it as in \"zkagent.\"", text)
	}
	for label := range strings.SplitSeq(name, ".") {
		if !dns.IsLabel(label) {
			return fmt.Errorf("%q is no domain: %q cannot be one of its labels", text, label)
		}
	}
	return nil
}

// recursor completes the address of a server with the port.
func recursor(text string) (string, error) {
	address := text
	if _, _, err := net.SplitHostPort(text); err != nil {
		address = net.JoinHostPort(strings.Trim(text, "[]"), "53")
	}
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not an address; write it as in \"10.0.0.2:53\"", text)
	case net.ParseIP(host) == nil:
		return "", fmt.Errorf("%q is not an IP address: a recursor cannot be found by a name", host)
	}
	return address, checkPort(port, 1)
}
