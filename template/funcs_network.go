package template

import (
	"fmt"
	"strings"

	sockaddr "github.com/hashicorp/go-sockaddr/template"
)

// sockaddr evaluates an expression of addresses.
func (st *state) sockaddr(expression ...string) (string, error) {
	if st.t.cfg.Sockaddr != nil {
		return st.t.cfg.Sockaddr(strings.Join(expression, " "))
	}
	return localAddress(expression...)
}

// localAddress evaluates an expression of go-sockaddr on the addresses of this
// host, such as `GetPrivateIP` or `GetInterfaceIP "eth0"`. Several arguments
// are joined with spaces. The interfaces are read anew at each call; nothing
// is connected to. Some expressions ask the routing table, for which the
// library runs ip(8).
func localAddress(expression ...string) (string, error) {
	text := strings.Join(expression, " ")
	address, err := sockaddr.Parse("{{ " + text + " }}")
	if err != nil {
		reason := err.Error() // Not wrapped: its place is one in the expression.
		if _, after, ok := strings.Cut(reason, ">: "); ok {
			reason = after
		}
		return "", fmt.Errorf("expression of addresses: %s", reason)
	}
	return address, nil
}
