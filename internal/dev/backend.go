package dev

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// backend is a small server on a free loopback port that answers every request
// with its name: what stands behind a simulated member.
type backend struct {
	addr   string
	port   int
	server *http.Server
	wg     sync.WaitGroup
}

func newBackend(name string) (*backend, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("stand-in for %s: %w", name, err)
	}
	b := &backend{addr: l.Addr().String()}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		b.port = tcp.Port
	}
	b.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, name)
	})}
	b.wg.Go(func() { _ = b.server.Serve(l) })
	return b, nil
}

func (b *backend) close() {
	_ = b.server.Close()
	b.wg.Wait()
}
