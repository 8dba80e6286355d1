package settings

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

func checkPort(text string, least int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > 65535 {
		return fmt.Errorf("%q is not a port from %d to 65535", text, max(least, 1))
	}
	return nil
}

func checkHost(host string) error {
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return nil
	}
	if host == "" || len(host) > 253 {
		return fmt.Errorf("%q is not a host name or an IP address", host)
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return fmt.Errorf("%q is not a host name or an IP address", host)
		}
		for _, r := range label {
			if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
				return fmt.Errorf("%q is not a host name or an IP address: it holds %q", host, r)
			}
		}
	}
	return nil
}

func checkHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an address; write it as in \"127.0.0.1:8080\" or \"[::1]:8080\"", text)
	}
	if err := checkHost(host); err != nil {
		return err
	}
	return checkPort(port, 1)
}

// checkServer checks a server of the ensemble; the port may be absent.
func checkServer(text string) error {
	if strings.Contains(text, "/") {
		return fmt.Errorf("%q has a slash; write the chroot in the argument chroot", text)
	}
	if strings.Contains(text, ",") {
		return fmt.Errorf("%q has a comma; write one server an element", text)
	}
	if _, _, err := net.SplitHostPort(text); err != nil {
		return checkHost(text)
	}
	return checkHostPort(text)
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q must begin with http:// or https://", text)
	case u.Host == "":
		return fmt.Errorf("%q has no host", text)
	}
	return checkHost(u.Hostname())
}
