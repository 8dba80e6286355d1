package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// vault gets every transaction. It checks after each that every stored version is whole,
// and that every needed version is stored.
type vault struct {
	t *testing.T

	mu     sync.Mutex // mu guards what follows.
	nodes  map[string][]byte
	needed []int64 // beside what ready names
}

const vaultRoot = "/c"

func (v *vault) committed(changes []memzk.Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range changes {
		if c.Data == nil {
			delete(v.nodes, c.Path)
		} else {
			v.nodes[c.Path] = slices.Clone(c.Data)
		}
	}
	v.check()
}

// check needs v.mu.
func (v *vault) check() {
	needed := slices.Clone(v.needed)
	if data := v.nodes[trees.ReadyPath(vaultRoot)]; len(data) > 0 {
		r, _, err := trees.ParseReady(data)
		if err != nil {
			v.t.Error(err)
		}
		needed = append(needed, r.Version, r.Previous)
	}
	there := v.versions()
	for _, n := range needed {
		if n != 0 && !slices.Contains(there, n) {
			v.t.Errorf("version %d is needed and gone, there are %v", n, there)
		}
	}
	for _, n := range there {
		m, err := trees.DecodeManifest(n, v.nodes[trees.VersionPath(vaultRoot, n)])
		if err != nil {
			v.t.Error(err)
			continue
		}
		for i, sum := range m.Buckets {
			bucket, ok := v.nodes[trees.ObjectPath(vaultRoot, sum)]
			entries, err := trees.DecodeBucket(bucket, i, m.Bits)
			if !ok && sum != trees.DigestOf(nil) || err != nil {
				v.t.Errorf("bucket %d of version %d is gone: %v", i, n, err)
			}
			for _, e := range entries {
				if _, ok := v.nodes[trees.ObjectPath(vaultRoot, e.Sum)]; !ok && e.Sum != trees.DigestOf(nil) {
					v.t.Errorf("%s of version %d is gone", e.Key, n)
				}
			}
		}
	}
}

// versions are those that are there. It needs v.mu.
func (v *vault) versions() []int64 {
	var list []int64
	for path := range v.nodes {
		if name, ok := strings.CutPrefix(path, trees.VersionsPath(vaultRoot)+"/"); ok {
			if n, err := strconv.ParseInt(name, 10, 64); err == nil && n > 0 {
				list = append(list, n)
			}
		}
	}
	slices.Sort(list)
	return list
}

// left are the versions and the number of objects that are there.
func (v *vault) left() ([]int64, int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	objects := 0
	for path := range v.nodes {
		if strings.HasPrefix(path, vaultRoot+"/objects/") && strings.Count(path, "/") == 4 {
			objects++
		}
	}
	return v.versions(), objects
}

// inVault runs a test on a server in memory, in virtual time.
func inVault(t *testing.T, fn func(t *testing.T, z *memzk.Server, v *vault)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &vault{t: t, nodes: map[string][]byte{}}
		z := memzk.New(memzk.Options{TickTime: 100 * time.Millisecond, Committed: v.committed})
		defer z.Close()
		fn(t, z, v)
	})
}

// TestGC_DiesAtEachRequest kills a garbage collection before each of its requests. No
// version that is needed is touched, what is left is whole, and the next collection
// finishes the work.
func TestGC_DiesAtEachRequest(t *testing.T) {
	t.Parallel()
	first, stride := testhelp.Steps()
	for n, died := first, true; died; n += stride {
		inVault(t, func(t *testing.T, z *memzk.Server, v *vault) {
			s := join(t, z)
			for i := range 6 {
				mustPublish(t, s, vaultRoot, "", map[string]string{"a": fmt.Sprint(i % 4), "b": fmt.Sprint(i), "same": "same"})
			}
			// One host holds version 2, and the open rollout wants version 3 in the place of 1.
			must(t, z.Create(SubscriptionPath(vaultRoot, "agent-1"), []byte(`{"version":2,"state":"held"}`)))
			must(t, z.Create(trees.RolloutsPath(vaultRoot)+"/r-0000000000", []byte(`{"version":3,"previous":1}`)))
			must(t, z.Create(currentPath(vaultRoot), []byte("r-0000000000")))
			v.mu.Lock()
			v.needed = []int64{1, 2, 3}
			v.mu.Unlock()

			victim := join(t, z, "victim:2181")
			dead, requests := make(chan struct{}), 0
			z.Hold(func(h memzk.Held) <-chan struct{} {
				if h.Addr != "victim:2181" {
					return nil
				}
				if requests++; requests == n {
					close(dead)
				}
				if requests < n {
					return nil
				}
				return make(chan struct{})
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { _, err := GC(ctx, victim, vaultRoot, 1, nil); ended <- err }()
			select {
			case <-dead:
			case err := <-ended:
				must(t, err)
				died = false
			}
			cancel()
			z.Hold(nil)
			z.ExpireSession(victim.ID())
			_ = victim.Close()
			if died {
				<-ended
			}
			_, err := GC(t.Context(), s, vaultRoot, 1, nil)
			must(t, err)
			if versions, objects := v.left(); !slices.Equal(versions, []int64{1, 2, 3, 5, 6}) || objects != 11 { // 5 buckets; the values 0, 1, 2, 4, 5 and same
				t.Errorf("killed before request %d: left are %v and %d objects", n, versions, objects)
			}
			must(t, s.Close())
		})
		if n == 1000 {
			t.Fatal("it never ends")
		}
		if !died && n < 10 {
			t.Errorf("it makes %d requests", n-1)
		}
	}
}

// TestGC_BesidePublishers collects all the time while two publishers go back and forth
// between few contents, whose objects they share, and a rollout refers to versions.
func TestGC_BesidePublishers(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	for seed := range testhelp.Rounds(1, 4) {
		inVault(t, func(t *testing.T, z *memzk.Server, v *vault) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(testhelp.Rounds(10, 20))*time.Second) // virtual
			defer cancel()
			z.Delay(memzk.AnyOp, 5*time.Millisecond)
			first := join(t, z)
			mustPublish(t, first, vaultRoot, "", map[string]string{"a": "0"})
			var wg sync.WaitGroup
			run := func(n uint64, do func(s *session.Session, rng *rand.Rand)) {
				rng, s := rand.New(rand.NewPCG(uint64(seed), n)), join(t, z, fmt.Sprintf("p%d:2181", n))
				wg.Go(func() {
					for ctx.Err() == nil {
						do(s, rng)
						_ = s.Sleep(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
					}
					_ = s.Close()
				})
			}
			for n := range uint64(2) {
				run(n, func(s *session.Session, rng *rand.Rand) {
					keys := map[string]string{"a": fmt.Sprint(rng.IntN(3)), "b": fmt.Sprint(rng.IntN(3)), "c": fmt.Sprint(rng.IntN(3))}
					_, _ = Publish(ctx, s, PublishConfig{Path: vaultRoot, Keys: bytesOf(keys), Author: "a", Host: "h", Force: true})
				})
			}
			collected := 0
			run(2, func(s *session.Session, _ *rand.Rand) {
				c, _ := GC(ctx, s, vaultRoot, 1, nil)
				collected += len(c.Versions)
			})
			run(3, func(_ *session.Session, rng *rand.Rand) {
				z.Delay(memzk.AnyOp, time.Duration(rng.IntN(20))*time.Millisecond)
			})
			wg.Wait()
			must(t, first.Close())
			if versions, _ := v.left(); collected < 3 || len(versions) > 20 {
				t.Errorf("collected %d versions, left are %v", collected, versions)
			}
		})
	}
}
