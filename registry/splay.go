package registry

import (
	"context"
	"hash/fnv"
	"net"
	"time"
)

// splayOf spreads members over the splay by their names. A member always waits the
// same time, and many members are evenly spread.
func splayOf(name string, splay time.Duration) time.Duration {
	if splay <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	// The upper bits of FNV differ little between names that differ in their
	// last byte only, so they are mixed once more.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return time.Duration(float64(x>>11) / (1 << 53) * float64(splay))
}

// localAddress returns the local address from which packets to the server go. It
// sends no packet.
func localAddress(ctx context.Context, server string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", server)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return "", err
	}
	return ParseHost(host)
}
