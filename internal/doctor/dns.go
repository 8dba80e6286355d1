package doctor

import (
	"context"

	"github.com/zkagent/zkagent/internal/dns"
)

// dns asks the agent's DNS listener, over both protocols: a client changes to TCP
// for an answer that does not fit.
func (d *doctor) dns(ctx context.Context) {
	if !d.running || d.cfg.DNS == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	for _, network := range []string{"udp", "tcp"} {
		if err := dns.Ask(ctx, network, d.cfg.DNS.Listen, d.cfg.DNS.Domain); err != nil {
			d.add(LevelFail, "dns", d.cfg.DNS.Listen, err.Error())
			d.hint("the agent may run with other settings, something else may have the port, or a firewall drops it: ss -lntup")
			return
		}
	}
	d.add(LevelOK, "dns", d.cfg.DNS.Listen, "it answers for "+d.cfg.DNS.Domain+" over UDP and TCP")
}
