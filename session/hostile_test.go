package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// bubbleWith is bubble with a server that has these options.
func bubbleWith(t *testing.T, opts memzk.Options, f func(t *testing.T, srv *memzk.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := memzk.New(opts)
		defer srv.Close()
		f(t, srv)
	})
}

// Znodes of 0.9 MB, beside each other and among small ones. The requests under way stay
// near 4 MB together, for all callers.
func TestMany_BytesInFlight(t *testing.T) {
	testhelp.InTurn(t, 2)
	large := bytes.Repeat([]byte("x"), testhelp.Rounds(300_000, 900_000))
	for name, large := range map[string][]byte{"large": large, "small": large[:100]} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			var paths []string
			if err := srv.Create("/t", nil); err != nil {
				t.Fatal(err)
			}
			znodes := testhelp.Rounds(550, 530)
			for i := range znodes {
				paths = append(paths, fmt.Sprintf("/t/n%03d", i))
				data := large
				if i < 500 {
					data = []byte("small")
				}
				if err := srv.Create(paths[i], data); err != nil {
					t.Fatal(err)
				}
			}
			s := dialMem(t, memConfig(srv))
			defer s.Close()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					res, err := s.GetMany(t.Context(), paths)
					if err != nil || len(res[znodes-1].Data) != len(large) || string(res[0].Data) != "small" {
						t.Error(err)
					}
				})
				wg.Go(func() {
					res, err := s.GetManyW(t.Context(), paths, true, 0)
					if err != nil || len(res[znodes-1].Data) != len(large) || string(res[0].Data) != "small" {
						t.Error(err)
						return
					}
					for _, r := range res {
						r.Watch.Stop()
					}
				})
			}
			wg.Wait()
			if got := srv.MaxUnread(); got > 6<<20 {
				t.Errorf("%s: %d kB waited to be read", name, got>>10)
			}
			if got := s.Requests()["multiRead"]; name == "small" && got > 6*12 {
				t.Errorf("%d requests for small znodes", got)
			}
		})
	}
}

// Whatever share of the znodes is large, and in whatever order they come, the replies
// under way have about 4 MB at most, and all znodes are read in few parts.
func TestTally_RandomTrees(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	over, parts, most := 0, 0, 0
	for range 2000 {
		share, size := math.Pow(random.Float64(), 3), 1+random.IntN(1<<20)
		var seen tally
		tree := 4 + random.IntN(2000)
		few := 0
		for read := 0; read < tree; few++ {
			guess := seen.estimate(seen)
			n := min(guess.part(), tree-read)
			if seen.n == 0 {
				n = min(n, firstPaths)
			}
			if n > 1 && guess.cost(n) > manyReply {
				t.Fatalf("%d znodes cost %d", n, guess.cost(n))
			}
			got := 0
			for range n {
				bytes := random.IntN(200)
				if random.Float64() < share {
					bytes = size
				}
				got += bytes
				seen.count(bytes)
			}
			parts++
			most = max(most, got)
			if got > 4<<20 {
				over++
			}
			read += n
		}
		if limit := 24 + int(seen.bytes/(1<<18)) + tree/manyPaths; few > limit {
			t.Errorf("%d parts for %d znodes of %.0f bytes", few, tree, seen.bytes)
		}
	}
	if over*2000 > parts || most > 8<<20 {
		t.Errorf("of %d replies %d have more than 4 MB, the largest %d kB", parts, over, most>>10)
	}
}

// What a cancelled call asked for counts until its reply is here.
func TestMany_CancelledCallsCount(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var paths []string
		for i := range 40 {
			paths = append(paths, fmt.Sprintf("/n%02d", i))
			if err := srv.Create(paths[i], make([]byte, 900_000)); err != nil {
				t.Fatal(err)
			}
		}
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		if _, err := s.GetMany(t.Context(), paths[:2]); err != nil {
			t.Fatal(err)
		}
		srv.Delay(jute.OpGetData, 5*time.Second)
		for range 30 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if _, err := s.GetMany(ctx, paths); err == nil {
				t.Error("read in time")
			}
			cancel()
		}
		if got := srv.MaxUnread(); got > 4<<20 {
			t.Errorf("%d kB waited to be read", got>>10)
		}
	})
}

// The writer of a tree chooses how long its names are. Few children may be a large list.
func TestListMany_LongNames(t *testing.T) {
	testhelp.InTurn(t, 2)
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var paths []string
		for i := range 200 {
			paths = append(paths, fmt.Sprintf("/t/d%03d", i))
			if err := srv.Create(paths[i]+"/"+strings.Repeat("n", 200_000), nil); err != nil {
				t.Fatal(err)
			}
		}
		srv.ByteBudget(0)
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		names := 0
		err := s.ListMany(t.Context(), paths, func(_ int, r ListResult) { names += len(r.Names) })
		if err != nil || names != len(paths) || srv.Deaths() > 0 {
			t.Errorf("%d names, %v, the server died %d times", names, err, srv.Deaths())
		}
	})
}

// A limit ends the reading of many large znodes, and says which were not read.
func TestGetManyW_Limit(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		var paths []string
		for i := range 100 {
			paths = append(paths, fmt.Sprintf("/n%03d", i))
			if err := srv.Create(paths[i], make([]byte, 100_000)); err != nil {
				t.Fatal(err)
			}
		}
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		res, err := s.GetManyW(t.Context(), paths, false, 2_000_000)
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for _, r := range res {
			switch {
			case r.Err == nil && len(r.Data) == 100_000:
				read++
			case !errors.Is(r.Err, ErrNotRead) || r.Watch != nil:
				t.Errorf("%+v", r)
			}
		}
		if read < 20 || read > 65 {
			t.Errorf("%d of 100 read with a limit of 20", read)
		}
	})
}

// Against a server that closes each connection behind the handshake there is at most
// one connection a step of the back-off, for an hour.
func TestStorm_ServerThatClosesAfterTheHandshake(t *testing.T) {
	testhelp.InTurn(t, 2)
	for _, timeout := range []time.Duration{12 * time.Second, 40 * time.Second} {
		bubble(t, func(t *testing.T, srv *memzk.Server) {
			srv.HangUp(jute.OpCreateSession)
			cfg := memConfig(srv)
			cfg.Timeout, cfg.StateDir = timeout, t.TempDir()
			m, stop := manage(t, cfg)
			defer stop()
			start := time.Now()
			before := uint64(0)
			for time.Since(start) < time.Hour {
				time.Sleep(time.Minute)
				now := srv.Handshakes()
				if now-before > 60 {
					t.Fatalf("%d connections in a minute, after %s", now-before, time.Since(start))
				}
				before = now
			}
			if n := srv.Handshakes(); n > 2600 || n < 1000 {
				t.Errorf("%d connections in an hour", n)
			}
			srv.Allow(jute.OpCreateSession)
			if err := mustSession(t, m).Sync(t.Context(), "/"); err != nil {
				t.Error(err)
			}
		})
	}
}

// hostile are servers that hang up at an operation that the library has another way
// for, or must do without. Each is used for ten minutes by somebody who does not
// give up.
func TestStorm_ServerThatHangsUpAtARequest(t *testing.T) {
	testhelp.InTurn(t, 2)
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprintf("/many/k%03d", i)
	}
	pause := time.Duration(testhelp.Rounds(2000, 500)) * time.Millisecond
	uses := map[string]func(ctx context.Context, s *Session) error{
		"multiRead": func(ctx context.Context, s *Session) error { _, err := s.GetMany(ctx, many); return err },
		"bulk": func(ctx context.Context, s *Session) error {
			res, err := s.GetManyW(ctx, many, true, 0)
			for _, r := range res {
				r.Watch.Stop()
			}
			return err
		},
		"recursive": func(ctx context.Context, s *Session) error {
			c, err := s.WatchRecursive(ctx, "/many")
			c.Release()
			if errors.Is(err, ErrUnimplemented) {
				return nil
			}
			return err
		},
		"create": func(ctx context.Context, s *Session) error {
			_, _, err := s.CreateProtected(ctx, "/many", "p", nil, Ephemeral)
			return err
		},
	}
	for _, c := range []struct {
		name, use string
		opts      memzk.Options
		hangUp    int32
		works     bool
	}{
		{"3.4", "multiRead", memzk.Options{Version: "3.4"}, 0, true},
		{"3.4", "bulk", memzk.Options{Version: "3.4"}, 0, true},
		{"3.4", "recursive", memzk.Options{Version: "3.4"}, 0, true},
		{"3.4", "create", memzk.Options{Version: "3.4"}, 0, false},
		{"3.5", "bulk", memzk.Options{Version: "3.5"}, 0, true},
		{"3.5", "recursive", memzk.Options{Version: "3.5"}, 0, true},
		{"3.5", "create", memzk.Options{Version: "3.5"}, 0, true},
		{"proxy", "multiRead", memzk.Options{}, jute.OpMultiRead, true},
		{"proxy", "bulk", memzk.Options{}, jute.OpMultiRead, true},
		{"proxy", "recursive", memzk.Options{}, jute.OpAddWatch, true},
		{"proxy", "create", memzk.Options{}, jute.OpCreate2, false},
	} {
		if testhelp.NotToday(c.name+c.use, 3) {
			continue
		}
		t.Run(c.name+" "+c.use, func(t *testing.T) {
			c.opts.TickTime = time.Second
			bubbleWith(t, c.opts, func(t *testing.T, srv *memzk.Server) {
				manyZnodes(t, srv, 20)
				if c.hangUp != 0 {
					srv.HangUp(c.hangUp)
				}
				cfg := memConfig(srv)
				cfg.StateDir = t.TempDir()
				m, stop := manage(t, cfg)
				defer stop()
				s := mustSession(t, m)
				worked := false
				for end := time.Now().Add(9 * time.Minute); time.Now().Before(end); {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					err := uses[c.use](ctx, s)
					cancel()
					worked = worked || err == nil
					if s.Context().Err() != nil {
						t.Fatalf("the session ended: %v", context.Cause(s.Context()))
					}
					if c.name == "3.4" && c.use == "create" && !errors.Is(err, ErrOldServer) {
						t.Fatalf("got %v, want words about the version", err)
					}
					time.Sleep(pause)
				}
				if worked != c.works {
					t.Errorf("worked %v, want %v", worked, c.works)
				}
				if n := srv.Handshakes(); c.works && n > 5 || n > 9*60 {
					t.Errorf("%d connections", n)
				}
				if c.name == "3.4" && c.use == "create" && m.Status().LastError == "" {
					t.Error("the status says nothing about the version")
				}
			})
		})
	}
}

// A request over the limit of the server costs an error, and not the session.
func TestSession_OverTheLimitOfTheServer(t *testing.T) {
	bubbleWith(t, memzk.Options{TickTime: time.Second, MaxFrame: 512 << 10}, func(t *testing.T, srv *memzk.Server) {
		if err := srv.Create("/n", nil); err != nil {
			t.Fatal(err)
		}
		cfg := memConfig(srv)
		cfg.StateDir = t.TempDir()
		m, stop := manage(t, cfg)
		defer stop()
		s := mustSession(t, m)
		if _, _, err := s.Create(t.Context(), "/e", nil, Ephemeral); err != nil {
			t.Fatal(err)
		}
		said := false
		for range 50 {
			_, err := s.Set(t.Context(), "/n", make([]byte, 700<<10), -1)
			if err == nil {
				t.Fatal("it was set")
			}
			said = said || errors.Is(err, ErrTooLarge)
		}
		if !said || s.Context().Err() != nil || !srv.Exists("/e") {
			t.Errorf("said %v, session %v", said, context.Cause(s.Context()))
		}
		if n := srv.Handshakes(); n > 4 {
			t.Errorf("%d connections", n)
		}
		if _, err := s.Set(t.Context(), "/n", make([]byte, 400<<10), -1); err != nil {
			t.Error(err)
		}
	})
}

// What an overloaded server threw away is asked for again; an overload that lasts is
// an error of its own, and switches nothing off.
func TestSession_Throttled(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		paths := manyZnodes(t, srv, 20)
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		ops := []int32{jute.OpGetData, jute.OpSetData, jute.OpMultiRead, jute.OpSetWatches, jute.OpAddWatch}
		for _, op := range ops {
			srv.RefuseWith(op, jute.ErrCodeThrottled)
		}
		if _, err := s.Set(t.Context(), paths[0], nil, -1); !errors.Is(err, ErrThrottled) {
			t.Errorf("got %v", err)
		}
		if _, err := s.WatchRecursive(t.Context(), "/many"); !errors.Is(err, ErrThrottled) {
			t.Errorf("got %v", err)
		}
		if _, err := s.GetManyW(t.Context(), paths, true, 0); !errors.Is(err, ErrThrottled) {
			t.Errorf("got %v", err)
		}
		time.AfterFunc(300*time.Millisecond, func() {
			for _, op := range ops {
				srv.Allow(op)
			}
		})
		if _, err := s.Set(t.Context(), paths[0], []byte("1"), -1); err != nil {
			t.Error(err)
		}
		res, err := s.GetManyW(t.Context(), paths, true, 0)
		if err != nil || !res[0].Kids {
			t.Errorf("%v, bulk %v", err, err == nil && res[0].Kids)
		}
		if c, err := s.WatchRecursive(t.Context(), "/many"); err != nil || !c.Live() {
			t.Errorf("recursive watch: %v", err)
		}
	})
}

// A server that the session has left says so: the read is sent again over another
// connection.
func TestSession_Moved(t *testing.T) {
	bubble(t, func(t *testing.T, srv *memzk.Server) {
		if err := srv.Create("/a", []byte("1")); err != nil {
			t.Fatal(err)
		}
		s := dialMem(t, memConfig(srv))
		defer s.Close()
		srv.RefuseWith(jute.OpGetData, jute.ErrCodeSessionMoved)
		time.AfterFunc(time.Second, func() { srv.Allow(jute.OpGetData) })
		if data, _, err := s.Get(t.Context(), "/a"); err != nil || string(data) != "1" {
			t.Errorf("%q, %v", data, err)
		}
		if s.Connection() < 2 {
			t.Error("on the same connection")
		}
	})
}
