package view

import (
	"net"
	"strconv"
)

// joinHostPort joins host and port; a member without a port is its host alone.
func joinHostPort(host string, port int) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
