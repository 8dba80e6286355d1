package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
)

// A session with an identity creates znodes that others may read, and only it may change.
func ExampleAuth() {
	cfg, stop := server()
	defer stop()
	ctx := context.Background()
	anybody, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer anybody.Close()
	cfg.Auth = []session.Auth{{Scheme: "digest", Data: []byte("app:secret")}}
	app, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer app.Close()
	_, _, _ = app.Create(ctx, "/limits", []byte("10"), session.Persistent)
	data, _, err := anybody.Get(ctx, "/limits")
	fmt.Println(string(data), err)
	_, err = anybody.Set(ctx, "/limits", []byte("99"), -1)
	fmt.Println(errors.Is(err, session.ErrNoAuth))
	// Output:
	// 10 <nil>
	// true
}

// The ACL of a znode is read, changed, and written if nobody else has changed it.
func ExampleACL() {
	s, end := open()
	defer end()
	ctx := context.Background()
	_, _, _ = s.Create(ctx, "/limits", nil, session.Persistent)
	acl, stat, err := s.GetACL(ctx, "/limits")
	if err != nil {
		fmt.Println(err)
		return
	}
	acl[0].Perms &^= session.PermDelete
	acl = append(acl, session.ACL{Perms: session.PermRead, Scheme: "ip", ID: "10.0.0.0/8"})
	stat, err = s.SetACL(ctx, "/limits", acl, stat.Aversion)
	fmt.Println(stat.Aversion, err)
	for _, a := range acl {
		fmt.Println(session.FormatACL(a))
	}
	// Output:
	// 1 <nil>
	// world:anyone:crwa
	// ip:10.0.0.0/8:r
}

// A program finds out whether it may write, before it tries.
func ExampleIdentity() {
	cfg, stop := server()
	defer stop()
	cfg.Auth = []session.Auth{{Scheme: "digest", Data: []byte("app:secret")}}
	ctx := context.Background()
	s, err := session.Dial(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	_, _, _ = s.Create(ctx, "/mine", nil, session.Persistent)
	var ids []session.Identity
	ids, err = s.WhoAmI(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	acl, _, err := s.GetACL(ctx, "/mine")
	fmt.Println(ids[len(ids)-1], session.FormatPermissions(s.Permissions(acl, ids)), err)
	fmt.Println("without them:", session.FormatPermissions(s.Permissions(acl, nil)))
	// Output:
	// digest:app cdrwa <nil>
	// without them: r
}

// Somebody who writes a mechanism steps through an exchange in a test, without a server.
func ExampleSASLExchange() {
	var exchange session.SASLExchange
	exchange, err := session.DigestMD5("app", "secret").Begin("zk1")
	if err != nil {
		fmt.Println(err)
		return
	}
	response, done, err := exchange.Step(nil) // nothing before the server's challenge
	fmt.Println(len(response), done, err)
	response, done, err = exchange.Step([]byte(`realm="zk-sasl-md5",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess`))
	fmt.Println(strings.Contains(string(response), `username="app"`), strings.Contains(string(response), "secret"), done, err)
	// Output:
	// 0 false <nil>
	// true false false <nil>
}

// saslServer starts a ZooKeeper in memory that lets in one user.
func saslServer(user, password string) (session.Config, func()) {
	srv := memzk.New(memzk.Options{SASLUsers: map[string]string{user: password}, RequireSASL: true})
	return session.Config{Servers: []string{"zk1:2181"}, Dial: srv.Dial}, srv.Close
}
