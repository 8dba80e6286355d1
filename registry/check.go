package registry

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// maxOutput bounds the stored output of a check, in bytes.
const maxOutput = 4 << 10

// Check finds out whether a service works. Run returns nil if it works, and in both
// cases an output to show. It returns soon after ctx ends. Calls do not overlap.
type Check interface {
	Run(ctx context.Context) (output string, err error)
}

// NewCheck makes the check that c describes. It does no I/O. Checks of kind ttl
// have no Check, because the service reports their results. run runs the commands
// of exec checks; nil means a plain runner.
func NewCheck(c CheckConfig, run RunFunc) (Check, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch c.Kind {
	case CheckHTTP:
		return newHTTPCheck(c)
	case CheckTCP:
		return tcpCheck{address: c.Address}, nil
	case CheckGRPC:
		return newGRPCCheck(c), nil
	case CheckExec:
		if run == nil {
			run = plainRun
		}
		return execCheck{args: c.Command, run: run}, nil
	}
	return nil, fmt.Errorf("checks of kind %q do not run", c.Kind)
}

// clip bounds output and makes it printable text.
func clip(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > maxOutput {
		s = strings.ToValidUTF8(s[:maxOutput], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

type tcpCheck struct{ address string }

func (c tcpCheck) Run(ctx context.Context) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	_ = conn.Close()
	return "connected to " + c.address, nil
}
