package view

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// joinHostPort joins host and port; a member without a port is its host alone.
func joinHostPort(host string, port int) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// CompareHosts orders addresses as addresses, so 10.0.0.9 comes before 10.0.0.10. Names
// come after addresses, in bytewise order.
func CompareHosts(a, b string) int {
	if a == b {
		return 0
	}
	addrA, errA := netip.ParseAddr(a)
	addrB, errB := netip.ParseAddr(b)
	switch {
	case errA == nil && errB == nil && addrA != addrB:
		return addrA.Compare(addrB)
	case errA == nil && errB != nil:
		return -1
	case errB == nil && errA != nil:
		return 1
	}
	return strings.Compare(a, b)
}
