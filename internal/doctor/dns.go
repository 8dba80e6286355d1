package doctor

import (
	"context"

	"github.com/zkagent/zkagent/internal/dns"
)

// dns queries the agent's DNS listener over UDP and TCP. A client uses TCP when an
// answer does not fit into UDP.
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
