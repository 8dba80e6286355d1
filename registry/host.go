package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ParseHost validates a host name or IP address and returns its canonical
// form: an IP address without brackets and zone, or an RFC 1123 name.
//
// It rejects addresses that no member can have (unspecified, multicast, broadcast),
// and names that a resolver reads as a number ("127.1", "0x7f000001"), because they
// reach another host than they seem to.
func ParseHost(s string) (string, error) {
	if s == "" {
		return "", errors.New("host is empty")
	}
	if len(s) > 255 {
		return "", errors.New("host is longer than 253 bytes")
	}
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
		if !strings.Contains(bare, ":") {
			return "", fmt.Errorf("host %q has brackets and is not an IPv6 address", s)
		}
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		return checkAddr(addr)
	}
	if strings.Contains(bare, ":") {
		return "", fmt.Errorf("host %q is not an IP address", s)
	}
	name := strings.TrimSuffix(s, ".")
	if err := checkName1123(name); err != nil {
		return "", fmt.Errorf("host %q: %w", s, err)
	}
	return name, nil
}

func checkAddr(addr netip.Addr) (string, error) {
	if addr.Zone() != "" {
		return "", fmt.Errorf("address %q has a zone", addr)
	}
	addr = addr.Unmap()
	if addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return "", fmt.Errorf("address %s is not the address of a host", addr)
	}
	return addr.String(), nil
}

func checkName1123(name string) error {
	if name == "" || len(name) > 253 {
		return errors.New("not a name of 1 to 253 bytes")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel1123(label); err != nil {
			return err
		}
		last = label
	}
	if isNumber(last) {
		return errors.New("a name that is a number would be taken for an address")
	}
	return nil
}

func checkLabel1123(label string) error {
	if label == "" || len(label) > 63 {
		return errors.New("a label is not 1 to 63 bytes long")
	}
	for i := range len(label) {
		if c := label[i]; !isAlnum(c) && c != '-' {
			return fmt.Errorf("byte %#x is not allowed in a name", c)
		}
	}
	if label[0] == '-' || label[len(label)-1] == '-' {
		return errors.New("a label begins or ends with a hyphen")
	}
	return nil
}

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// isNumber reports whether inet_aton would read the label as a number.
func isNumber(label string) bool {
	digits := "0123456789"
	if len(label) > 1 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X') {
		label, digits = label[2:], "0123456789abcdefABCDEF"
	}
	return strings.Trim(label, digits) == ""
}
