package session_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zkagent/zkagent/session"
)

// vault is a mechanism whose password comes from a store of secrets, and changes.
type vault struct {
	read func() (string, error)

	mu       sync.Mutex // mu guards password
	password string
}

func (*vault) Name() string { return "DIGEST-MD5" }

// Prepare runs before each dial.
func (v *vault) Prepare(host string) error {
	_, err := v.Renew(host)
	return err
}

// Begin starts an exchange on a new connection.
func (v *vault) Begin(host string) (session.SASLExchange, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return session.DigestMD5("app", v.password).Begin(host)
}

// Renew runs while the session is connected: the next connection needs no store.
func (v *vault) Renew(string) (time.Duration, error) {
	password, err := v.read()
	if err == nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.password = password
	}
	return time.Hour, err
}

func ExampleSASLMechanism() {
	cfg, stop := saslServer("app", "secret") // session.Config{Servers: ...}
	defer stop()
	var mechanism session.SASLRenewer = &vault{read: func() (string, error) { return "secret", nil }}
	cfg.SASL = mechanism
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	ids, err := s.WhoAmI(ctx)
	fmt.Println(ids[len(ids)-1], err)
	// Output: sasl:app <nil>
}
