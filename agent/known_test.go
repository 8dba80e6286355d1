package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/proc"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// TestViews_KnownAcceptedInUse: a host that votes on a version knows it, but has not
// accepted or used it. The same holds when its check has refused the version. The record,
// the status and the page say so. A tree that is made again begins from nothing.
func TestViews_KnownAcceptedInUse(t *testing.T) {
	testhelp.InTurn(t, 2)
	t.Parallel()
	b, w := memBed(t)
	ctx := t.Context()
	const root = "/config/web"
	s, keys, publish := b.publisher(w, root)
	c := b.memConfig(w)
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0"}
	c.Configs = []config.Config{{Name: "web", Path: root}}
	file := b.file("out", `{{ key "web/v" }}`)
	file.Check = &apply.CheckConfig{Command: argv("check")}
	c.Bundles = []apply.Config{file}
	checking, refuse := make(chan struct{}), make(chan struct{})
	c.Run = func(ctx context.Context, cmd proc.Command) (proc.Result, error) {
		if len(cmd.Args) > 0 && cmd.Args[0] == "check" && strings.Contains(read(t, b.path("out")), "one") {
			select {
			case <-checking:
			default:
				close(checking)
			}
			select {
			case <-refuse:
			case <-ctx.Done():
			}
			return proc.Result{Code: 1}, errors.New("exit status 1")
		}
		return proc.Result{}, nil
	}
	publish("one")
	a := b.start(c)
	fileIs(t, b.path("out"), "one")
	eventually(t, "the subscription", func() bool {
		list, err := fleet.Subscribers(ctx, s, root)
		return err == nil && len(list) == 1 && list[0].Version == 1
	})
	says := func(what string, want fleet.ConfigUse, files string) {
		t.Helper()
		want.Path = root
		eventually(t, what+" in ZooKeeper", func() bool {
			hosts, err := fleet.Agents(ctx, s)
			return err == nil && len(hosts) == 1 && hosts[0].Configs["web"] == want && strings.HasSuffix(hosts[0].Files["out"], files)
		})
		newer := int64(0)
		if want.Known != want.Accepted {
			newer = want.Known
		}
		if src := a.Status().Sources; len(src) != 1 || src[0].Known != newer {
			t.Errorf("%s: the status has %+v, want %d known", what, src, newer)
		}
		_, page, _ := httpGet(t, a, http.MethodGet, "/agent", nil)
		if strings.Contains(page, " known</span>") != (newer != 0) {
			t.Errorf("%s: the page shows\n%s", what, page)
		}
		_, metrics, _ := httpGet(t, a, http.MethodGet, "/metrics", nil)
		_, used, _ := strings.Cut(files, "@")
		for _, line := range []string{
			fmt.Sprintf(`zkagent_config_version{config="web",stage="known"} %d`, want.Known),
			fmt.Sprintf(`zkagent_config_version{config="web",stage="accepted"} %d`, want.Accepted),
			fmt.Sprintf(`zkagent_template_config_version{template="out"} %s`, used),
		} {
			if !strings.Contains(metrics, line+"\n") {
				t.Errorf("%s: the metrics lack %s", what, line)
			}
		}
	}
	says("version 1", fleet.ConfigUse{Known: 1, Accepted: 1}, "@1")

	r, err := fleet.Prepare(ctx, s, keys("two"))
	if err != nil {
		t.Fatal(err)
	}
	name, err := fleet.Propose(ctx, s, fleet.Request{Root: root, Version: r.Version, Digest: r.Digest, Strategy: fleet.Strategy{Parallel: 1}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the check", func() bool {
		select {
		case <-checking:
			return true
		default:
			return false
		}
	})
	says("a vote under way", fleet.ConfigUse{Known: 2, Accepted: 1}, "@1")
	close(refuse)
	eventually(t, "the refusal", func() bool {
		state, err := fleet.Read(ctx, s, root, name)
		return err == nil && state.Phase() == fleet.PhaseAborted
	})
	says("a version that was refused", fleet.ConfigUse{Known: 2, Accepted: 1}, "@1")

	publish("three")
	says("a version without a vote", fleet.ConfigUse{Known: 3, Accepted: 3}, "failed@1")

	eventually(t, "the subscription to report the version", func() bool {
		list, err := fleet.Subscribers(ctx, s, root)
		return err == nil && len(list) == 1 && list[0].Version == 3
	})
	for _, name := range []string{"/ready", "/versions"} {
		if err := w.Delete(root + name); err != nil {
			t.Fatal(err)
		}
	}
	publish("one")
	says("a tree that was deleted and published again", fleet.ConfigUse{Known: 4, Accepted: 4}, "@4")
}

// TestRecord_FlatTree: a flat tree has no versions, and its znodes' numbers are not
// shown as such.
func TestRecord_FlatTree(t *testing.T) {
	t.Parallel()
	b, w := memBed(t)
	for _, path := range []string{"/config", "/config/flat", "/config/flat/v", "/config/flat/ready"} {
		if err := w.Create(path, []byte("one")); err != nil {
			t.Fatal(err)
		}
	}
	c := b.memConfig(w)
	c.Configs = []config.Config{{Name: "flat", Path: "/config/flat"}}
	c.Bundles = []apply.Config{b.file("out", `{{ key "flat/v" }}`)}
	a := b.start(c)
	fileIs(t, b.path("out"), "one")
	eventually(t, "the record", func() bool { return a.record().Files["out"] == "ok" })
	if r := a.record(); len(r.Configs) != 0 {
		t.Errorf("the record has the versions %v", r.Configs)
	}
}
