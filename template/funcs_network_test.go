package template

import (
	"strings"
	"testing"
)

// TestSockaddr looks at the loopback interface, which every host has.
func TestSockaddr(t *testing.T) {
	for _, c := range []struct{ tpl, want string }{
		{`{{ sockaddr "GetAllInterfaces | include \"flags\" \"loopback\" | include \"type\" \"IPv4\" | attr \"address\"" }}`, "127.0.0.1"},
		{"{{ sockaddr `GetAllInterfaces | include \"address\" \"127[.]0[.]0[.]1\"` `| join \"address\" \",\"` }}", "127.0.0.1"},
		{"{{ with `GetAllInterfaces | include \"rfc\" \"1122\" | include \"type\" \"IPv4\" | limit 1 | attr \"type\"` | sockaddr }}{{ . }}{{ end }}", "IPv4"},
		{"{{ sockaddr `GetInterfaceIP \"no-such-interface\"` }}", ""},
	} {
		got, err := render(t, Config{Name: "address", Source: c.tpl}, nil, nil)
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.tpl, got, err, c.want)
		}
	}
}

// TestSockaddr_Errors wants errors with a place, also from nothing.
func TestSockaddr_Errors(t *testing.T) {
	for _, tpl := range []string{"{{ sockaddr }}", `{{ sockaddr "" }}`, `{{ sockaddr "Nope" }}`, `{{ sockaddr 1 }}`, "{{ sockaddr `GetAllInterfaces | attr \"nope\"` }}"} {
		_, err := render(t, Config{Name: "address", Source: tpl}, nil, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "address:1:") {
			t.Errorf("%s: got error %v, want one with line and column", tpl, err)
		}
	}
}
