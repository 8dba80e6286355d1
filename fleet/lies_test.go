package fleet

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/jute"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// forged is a version made by hand.
type forged struct {
	m       *trees.Manifest
	objects map[trees.Digest][]byte
}

// forge is an honest version of one key, with the entries of its bucket changed.
func forge(change func(entries []trees.Entry) []trees.Entry) *forged {
	value := []byte("value")
	f := &forged{objects: map[trees.Digest][]byte{trees.DigestOf(value): value}}
	entries := []trees.Entry{{Key: "a", Size: int64(len(value)), Sum: trees.DigestOf(value)}}
	if change != nil {
		entries = change(entries)
	}
	// Not encodeBucket: it would put the keys in order.
	var bucket []byte
	for _, e := range entries {
		bucket = append(bucket, trees.EncodeBucket([]trees.Entry{e})...)
	}
	f.m = &trees.Manifest{Header: trees.Header{Count: len(entries), ID: "forged"}}
	for _, e := range entries {
		f.m.Size += e.Size
	}
	f.bucket(bucket)
	return f
}

// bucket makes data the only bucket.
func (f *forged) bucket(data []byte) {
	f.m.Buckets = []trees.Digest{trees.DigestOf(data)}
	f.objects[f.m.Buckets[0]] = data
	f.m.Sum = trees.TreeDigest(f.m.Bits, f.m.Buckets)
}

// forgedVersion is the number of a version made by hand.
const forgedVersion = 7

// put writes the version and then, once all of the lie stands, makes ready name it.
func (l *lie) put(t *testing.T, s *session.Session, path string) {
	t.Helper()
	data := l.f.m.Encode()
	if l.edit != nil {
		data = l.edit(data)
	}
	write(t, s, trees.VersionPath(path, forgedVersion), string(data))
	for sum, object := range l.f.objects {
		write(t, s, trees.ObjectPath(path, sum), string(object))
	}
	if l.after != nil {
		l.after(t, path)
	}
	sum := l.f.m.Sum
	if l.ready != nil {
		sum = *l.ready
	}
	write(t, s, trees.ReadyPath(path), string(trees.Ready{Version: forgedVersion, Digest: sum.String(), Previous: 1}.Encode()))
}

// lie is one way in which a version may not be what it says.
type lie struct {
	name  string
	f     *forged
	edit  func([]byte) []byte          // of the version's data
	after func(t *testing.T, p string) // once it is written
	ready *trees.Digest                // what ready says; nil: the version's digest
	is    error
	words string
}

func renamed(key string) *forged {
	return forge(func(entries []trees.Entry) []trees.Entry { entries[0].Key = key; return entries })
}

func replaced(from, to string) func([]byte) []byte {
	return func(data []byte) []byte { return []byte(strings.Replace(string(data), from, to, 1)) }
}

func lies(s *session.Session) []lie {
	remove := func(sum trees.Digest) func(*testing.T, string) {
		return func(t *testing.T, p string) { must(t, s.Delete(soon(t), trees.ObjectPath(p, sum), -1)) }
	}
	honest, empty := forge(nil), trees.DigestOf(nil)
	list := []lie{
		{name: "no header", f: forge(nil), edit: func(d []byte) []byte { return d[len(d)-32:] }, is: trees.ErrManifest, words: "header"},
		{name: "header is no JSON", f: forge(nil), edit: replaced(`{"`, `["`), is: trees.ErrManifest, words: "decode header"},
		{name: "header without digest", f: forge(nil), edit: replaced("sha256:", "sha255:"), is: trees.ErrManifest, words: "is not a digest"},
		{name: "other buckets than the digest says", f: forge(nil), edit: func(d []byte) []byte { d[len(d)-1] ^= 1; return d }, is: config.ErrDigest, words: "its buckets are sha256:"},
		{name: "fewer buckets than bits say", f: forge(nil), edit: replaced(`"bits":0`, `"bits":3`), is: trees.ErrManifest, words: "for 3 bits"},
		{name: "huge number of bits", f: forge(nil), edit: replaced(`"bits":0`, `"bits":62`), is: trees.ErrManifest, words: "for 62 bits"},
		{name: "negative number of bits", f: forge(nil), edit: replaced(`"bits":0`, `"bits":-1`), is: trees.ErrManifest, words: "for -1 bits"},
		{name: "another count", f: forge(nil), edit: replaced(`"count":1`, `"count":9000000`), is: trees.ErrManifest, words: "list 1 keys of 5 bytes, its header says 9000000 of 5"},
		{name: "another size", f: forge(nil), edit: replaced(`"size":5`, `"size":5000000000000`), is: trees.ErrManifest, words: "its header says 1 of 5000000000000"},
		{name: "value of another size", f: forge(func(e []trees.Entry) []trees.Entry { e[0].Size = 4; return e }), is: config.ErrDigest, words: `value of "a" has 5 bytes, its bucket says 4`},
		{name: "hostile size", f: forge(func(e []trees.Entry) []trees.Entry { e[0].Size = 1 << 40; return e }), is: trees.ErrBucket, words: "cut off"},
		{name: "key twice", f: forge(func(e []trees.Entry) []trees.Entry { return append(e, e[0]) }), is: trees.ErrBucket, words: `key "a" is not after "a"`},
		{name: "unknown kind", f: forge(func(e []trees.Entry) []trees.Entry { e[0].Kind = 7; return e }), is: trees.ErrBucket, words: "unknown kind 7"},
		{name: "object is another", f: honest, after: func(t *testing.T, p string) {
			write(t, s, trees.ObjectPath(p, trees.DigestOf([]byte("value"))), "other")
		}, is: config.ErrDigest, words: "holds sha256:"},
		{name: "object is missing", f: forge(nil), after: remove(trees.DigestOf([]byte("value"))), is: trees.ErrGone, words: "object sha256:"},
		{name: "bucket is missing", f: honest, after: remove(honest.m.Buckets[0]), is: trees.ErrGone, words: "object sha256:"},
		{name: "version is missing", f: forge(nil), after: func(t *testing.T, p string) { must(t, s.Delete(soon(t), trees.VersionPath(p, forgedVersion), -1)) }, is: trees.ErrGone, words: "there is no version 7"},
		{name: "ready has another digest", f: forge(nil), ready: &empty, is: config.ErrDigest, words: "ready says sha256:"},
	}
	for _, key := range []string{"../up", "/abs", "a//b", "a/../b", "ready", "objects/x", "new\nline", "not\xffutf8", ""} {
		list = append(list, lie{name: "key " + hex.EncodeToString([]byte(key)), f: renamed(key), is: trees.ErrBucket, words: "bucket 0: "})
	}
	list = append(list, lie{name: "cut off bucket", f: forge(nil), is: trees.ErrBucket, words: "cut off"})
	cut := list[len(list)-1].f
	cut.bucket(cut.objects[cut.m.Buckets[0]][:10])
	noList := []byte("not a list of digests")
	parts := forge(func(e []trees.Entry) []trees.Entry {
		return append(e, trees.Entry{Key: "b", Size: 10, Kind: trees.KindParts, Sum: trees.DigestOf(noList)})
	})
	parts.objects[trees.DigestOf(noList)] = noList
	return append(list, lie{name: "list of parts that is none", f: parts, is: trees.ErrBucket, words: "list of parts has 21 bytes"})
}

// A version that lies is refused by everybody who reads it, in words that say
// where; agents keep what they have; a rollback, and a forced publish, replace it.
func TestVersioned_EveryLieIsRefused(t *testing.T) {
	t.Parallel()
	s := dial(t)
	for _, lie := range lies(s) {
		t.Run(lie.name, func(t *testing.T) {
			t.Parallel()
			path := newRoot(t)
			good := map[string]string{"a": "good"}
			mustPublish(t, s, path, "", good)
			f := follow(t, s, config.Config{Name: "c", Path: path})
			f.await("the good tree", has(good))
			lie.put(t, s, path)
			f.awaitStatus("the lie", func(st config.Status) bool { return errors.Is(st.Err, lie.is) || st.Waiting != "" })
			checkRefused(t, s, path, lie)
			if n := len(f.all()); n != 1 {
				t.Errorf("passed on %d trees, the last %s", n, show(f.last()))
			}
			res, err := Rollback(soon(t), s, PublishConfig{Path: path, Message: "back"}, 0)
			must(t, err)
			f.awaitStatus("the tree of before", func(st config.Status) bool { return st.Err == nil && st.Generation == res.Version })
			if got := f.last(); !has(good)(got) {
				t.Errorf("got %s", show(got))
			}
			must(t, f.stop())
			// The collection keeps the lie, which is the version before, and does not
			// know what it needs.
			if _, err := GC(soon(t), s, path, 1, nil); err != nil {
				t.Errorf("collect garbage beside it: %v", err)
			}
			if tree, err := config.Read(soon(t), s, path); err != nil || !has(good)(tree) {
				t.Errorf("after the collection: %s, %v", show(tree), err)
			}
		})
	}
}

// checkRefused reads the lie in all ways, and tries to publish over it.
func checkRefused(t *testing.T, s *session.Session, path string, lie lie) {
	t.Helper()
	tree, err := config.Read(soon(t), s, path)
	if !errors.Is(err, lie.is) || !errors.Is(err, config.ErrDamaged) || !strings.Contains(err.Error(), lie.words) || tree != nil {
		t.Errorf("read %s, %v; want %q", show(tree), err, lie.words)
	}
	if !trees.Unusable(err) {
		t.Errorf("a vote on it would wait for ever: %v", err)
	}
	must(t, s.Sync(soon(t), path))
	was, _, err := s.Get(soon(t), trees.ReadyPath(path))
	must(t, err)
	cfg := PublishConfig{Path: path, Keys: bytesOf(map[string]string{"a": "new", "b": "more"})}
	if _, err = Publish(soon(t), s, cfg); !errors.Is(err, config.ErrDamaged) {
		t.Errorf("published over it: %v", err)
	}
	if p, err := NewPlan(soon(t), s, cfg); err != nil || !errors.Is(p.Refused, config.ErrDamaged) {
		t.Errorf("planned over it: %v", err)
	}
	is, _, err := s.Get(soon(t), trees.ReadyPath(path))
	if err != nil || string(is) != string(was) {
		t.Errorf("ready is %s, %v; it was %s", is, err, was)
	}
}

// A forced publish replaces what is damaged, and what it has in common with it is
// stored again.
func TestPublish_ForcedOverDamage(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	keys := map[string]string{"a": "1", "b": "2"}
	mustPublish(t, s, path, "", keys)
	for _, value := range []string{"1", "2"} {
		write(t, s, trees.ObjectPath(path, trees.DigestOf([]byte(value))), "rot")
	}
	keys["c"] = "3"
	cfg := PublishConfig{Path: path, Keys: bytesOf(keys)}
	if _, err := Publish(soon(t), s, cfg); !errors.Is(err, config.ErrDamaged) || !errors.Is(err, config.ErrDigest) {
		t.Errorf("got %v", err)
	}
	cfg.Force = true
	res, err := Publish(soon(t), s, cfg)
	must(t, err)
	tree, err := config.Read(soon(t), s, path)
	if err != nil || res.Version != 2 || res.Previous != 1 || !has(keys)(tree) {
		t.Errorf("got %+v: %s, %v", res, show(tree), err)
	}
}

// What an archive or an export may not do either: write outside of its directory.
func TestWriteDir_StaysInside(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	for i, key := range []string{"../up", "a/../../up", "ready"} {
		tree := view.NewTree(view.Tree{}, view.KeysOf(map[string][]byte{key: []byte("x")}))
		if err := config.WriteDir(filepath.Join(parent, fmt.Sprint("out", i)), tree); err == nil {
			t.Errorf("%q was written", key)
		}
	}
	if _, err := os.Stat(filepath.Join(parent, "up")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file outside: %v", err)
	}
}

// TestLoad_CountsWhatItKnows: a version with the content of the one in memory, and a
// header that lies about its size, has the size that was counted.
func TestLoad_CountsWhatItKnows(t *testing.T) {
	t.Parallel()
	s, path := dial(t), newRoot(t)
	mustPublish(t, s, path, "", map[string]string{"a": "value"})
	known, err := trees.Load(soon(t), s, path, 1, nil, 0)
	must(t, err)
	data, _, err := s.Get(soon(t), trees.VersionPath(path, 1))
	must(t, err)
	lie := replaced(`"size":5`, `"size":4`)(data)
	if string(lie) == string(data) {
		t.Fatalf("no size in %q", data)
	}
	write(t, s, trees.VersionPath(path, forgedVersion), string(lie))
	c, err := trees.Load(soon(t), s, path, forgedVersion, known, 0)
	if err != nil || c.Size != 5 || c.Count != 1 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// asksLittle fails when more requests come while fn runs than a quiet rollout has.
func asksLittle(t *testing.T, w *world, see func(memzk.Held), fn func()) {
	t.Helper()
	asked, end := atomic.Int64{}, make(chan struct{})
	w.server.Hold(func(h memzk.Held) <-chan struct{} {
		see(h)
		if asked.Add(1) > 1000 {
			return end // otherwise no virtual time passes
		}
		return nil
	})
	fn()
	w.server.Hold(nil)
	close(end)
	if n := asked.Load(); n > 800 {
		t.Errorf("%d requests", n)
	}
}

// The list of the hosts that a rollout has called is overwritten: the coordinator does not
// call them again and again.
func TestCoordinator_CallsOfNobody(t *testing.T) {
	for _, data := range []string{`{}`, `{"ids":null}`, `{"ids":[]}`} {
		inBubble(t, 3, func(t *testing.T, w *world) {
			name := w.propose(2, Strategy{Parallel: 1, Canary: 1, Bake: Duration(time.Hour)})
			w.await("the canary", func() bool { s, _ := Read(t.Context(), w.desk, root, name); return begun(s) == 1 })
			calls := atomic.Int64{}
			asksLittle(t, w, func(h memzk.Held) {
				if h.Op == jute.OpMulti {
					calls.Add(1)
				}
			}, func() {
				for id := range w.hosts {
					must(t, w.server.Set(snapshotPath(root, name, Shard(id)), []byte(data)))
				}
				time.Sleep(time.Minute) // virtual
			})
			if n := calls.Load(); n > 3 {
				t.Errorf("%s: %d transactions", data, n)
			}
		})
	}
}

// Somebody writes the gate before each transaction of the coordinator, which is refused then:
// it pauses, and finishes the rollout when that ends.
func TestCoordinator_RefusedForLong(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, w *world) {
		name := w.propose(2, Strategy{Parallel: 1, Canary: 1, Bake: Duration(10 * time.Minute)})
		w.await("the canary", func() bool { s, _ := Read(t.Context(), w.desk, root, name); return begun(s) == 1 })
		gate := gatePath(root, name)
		refused := atomic.Int64{}
		asksLittle(t, w, func(h memzk.Held) {
			if h.Op != jute.OpMulti || !bytes.Contains(h.Body, []byte(gate)) {
				return
			}
			data, err := w.server.Get(gate)
			if err == nil {
				err = w.server.Set(gate, data.Data)
			}
			if err == nil {
				refused.Add(1)
			}
		}, func() { time.Sleep(20 * time.Minute) }) // virtual
		if refused.Load() < 5 {
			t.Errorf("%d transactions were refused", refused.Load())
		}
		w.awaitPhase(name, PhaseDone)
	})
}
