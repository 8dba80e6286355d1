package registry

import (
	"context"
	"fmt"
	"net"
)

// tcpCheck connects and closes.
type tcpCheck struct{ address string }

func (c tcpCheck) Run(ctx context.Context) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	_ = conn.Close()
	return "connected to " + c.address, nil
}
