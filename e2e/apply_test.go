package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestApply_NginxLosesNoRequest changes the upstreams of a real nginx again
// and again while clients that close their connections ask it: none of them
// loses a request. Each reload is believed only when the master has new
// workers (verify).
func TestApply_NginxLosesNoRequest(t *testing.T) {
	t.Parallel()
	zk := zookeeper(t)
	one, _ := backend(t, "one")
	two, _ := backend(t, "two")
	for i, s := range []string{portOf(one), portOf(two)} {
		a := newAgent(t, fmt.Sprintf("service%d", i), serviceSettings(zk, s))
		a.start(t)
	}
	// Backends may be slow on a busy machine: that is no loss by a reload.
	keys := map[string]string{"banner": "b0", "timeouts/connect": "60s", "timeouts/read": "60s"}
	publish(t, zk, "/config/shop", keys)
	web, nginx := startWeb(t, zk)
	nginx.start(t)
	web.start(t)
	// A worker of the time before the agent may take a few more connections.
	eventually(t, "both servers, and nothing else, behind nginx", func() bool {
		who := nginx.answering(100)
		return who["one"] > 0 && who["two"] > 0 && len(who) == 2
	})
	file := filepath.Join(web.dir, "conf.d", "upstreams.conf")
	load := startLoad(t, "http://127.0.0.1:"+nginx.port+"/", false)
	for n := 1; n <= 4; n++ {
		banner := fmt.Sprintf("b%d", n)
		keys["banner"] = banner
		publish(t, zk, "/config/shop", keys)
		eventually(t, "nginx to serve "+banner, func() bool {
			data, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(data), banner) && nginx.banner() == banner
		})
	}
	asked, lost := load.end()
	t.Logf("%d requests during 4 reloads, %d lost", asked, len(lost))
	if asked == 0 || len(lost) > 0 {
		t.Errorf("got %d requests, lost %v", asked, lost)
	}
}

// banner is the header that the template sets.
func (n *nginxProcess) banner() string {
	resp, err := oneRequest.Get("http://127.0.0.1:" + n.port + "/")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	return resp.Header.Get("X-Banner")
}

// load is clients that ask one after the other.
type load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	asked  atomic.Int64
	mu     sync.Mutex // mu guards lost.
	lost   []string
}

// startLoad asks with two clients; each request is on a connection of its own
// unless they are kept.
func startLoad(t *testing.T, url string, keep bool) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	transport := &http.Transport{DisableKeepAlives: !keep}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	for range 2 {
		l.wg.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond) // no host runs out of ports by it.
			defer tick.Stop()
			for ctx.Err() == nil {
				l.ask(client, url)
				<-tick.C
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) ask(client *http.Client, url string) {
	l.asked.Add(1)
	resp, err := client.Get(url)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body) // Read to its end, the connection can be kept.
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode == http.StatusOK {
			return
		}
		err = errors.Join(errors.New(resp.Status), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, err.Error())
}

func (l *load) end() (int64, []string) {
	l.cancel()
	l.wg.Wait()
	return l.asked.Load(), l.lost
}
