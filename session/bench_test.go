package session

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zkagent/zkagent/internal/zktest"
)

// BenchmarkGet compares reads with those of the client library alone.
func BenchmarkGet(b *testing.B) {
	addr, root := zktest.Shared(b).Addr(), zktest.Root(b)
	s, err := Dial(b.Context(), Config{Servers: []string{addr}, Chroot: root})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, _, err := s.Create(b.Context(), "/n", make([]byte, 256), Persistent); err != nil {
		b.Fatal(err)
	}
	lib, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		b.Fatal(err)
	}
	defer lib.Close()
	go func() {
		for range events {
		}
	}()
	for _, width := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("session/%d", width), func(b *testing.B) {
			b.ReportAllocs()
			if err := parallel(b.Context(), b.N, width, func(ctx context.Context, _ int) error {
				_, _, err := s.Get(ctx, "/n")
				return err
			}); err != nil {
				b.Fatal(err)
			}
		})
		b.Run(fmt.Sprintf("library/%d", width), func(b *testing.B) {
			b.ReportAllocs()
			if err := parallel(b.Context(), b.N, width, func(context.Context, int) error {
				_, _, err := lib.Get(root + "/n")
				return err
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkGetMany reads 10,000 znodes as a mirror does when it starts.
func BenchmarkGetMany(b *testing.B) {
	s, err := Dial(b.Context(), Config{Servers: []string{zktest.Shared(b).Addr()}, Chroot: zktest.Root(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	paths := make([]string, 10_000)
	for i := range paths {
		paths[i] = fmt.Sprintf("/key-%05d", i)
	}
	if err := parallel(b.Context(), len(paths), 64, func(ctx context.Context, i int) error {
		_, _, err := s.Create(ctx, paths[i], make([]byte, 200), Persistent)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.GetMany(b.Context(), paths); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect is a session from nothing to its end, and one taken over.
func BenchmarkConnect(b *testing.B) {
	cfg := Config{Servers: []string{zktest.Shared(b).Addr()}}
	b.Run("dial", func(b *testing.B) {
		for b.Loop() {
			s, err := Dial(b.Context(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			_ = s.Close()
		}
	})
	b.Run("floor", func(b *testing.B) { // the client library, which only connects
		for b.Loop() {
			lib, events, err := zk.Connect(cfg.Servers, 10*time.Second, zk.WithLogInfo(false))
			if err != nil {
				b.Fatal(err)
			}
			for e := range events {
				if e.State == zk.StateHasSession {
					break
				}
			}
			lib.Close()
		}
	})
	b.Run("take over", func(b *testing.B) {
		cfg.StateDir = b.TempDir()
		for b.Loop() {
			takeOver(b, cfg)
		}
	})
}

func takeOver(b *testing.B, cfg Config) {
	m, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	if _, err := m.Session(ctx); err != nil {
		b.Fatal(err)
	}
	m.HandOver()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
