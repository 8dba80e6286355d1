package dns

import (
	"context"
	"fmt"

	"github.com/miekg/dns"
)

// Ask asks the server at an address, over udp or tcp, whether it answers for the
// domain. An error says what it does instead.
func Ask(ctx context.Context, network, address, domain string) error {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(domain), dns.TypeSOA)
	a, _, err := (&dns.Client{Net: network}).ExchangeContext(ctx, q, address)
	if err != nil {
		return fmt.Errorf("it does not answer over %s: %w", network, err)
	}
	if a.Rcode != dns.RcodeSuccess || !a.Authoritative || len(a.Answer) == 0 {
		return fmt.Errorf("it answers over %s, but not for %s: %s", network, dns.Fqdn(domain), dns.RcodeToString[a.Rcode])
	}
	return nil
}
