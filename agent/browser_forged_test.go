//go:build page

package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/web"
	"github.com/zkagent/zkagent/registry"
)

// forged is what somebody who may write a znode would like a reader of the page to see or run.
const forged = "\"><img src=x onerror=pwned=1><script>pwned=1</script><b>x</b>\u202elive\u200b\nall healthy\u2028\x1b[2J\u00ad"

// TestBrowser_ForgedFields: text of znodes in every field of the pages runs nothing, makes
// no element, and neither turns text around nor begins a line.
func TestBrowser_ForgedFields(t *testing.T) {
	b, _ := ownBed(t)
	q := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	c := b.config()
	c.HTTP = &web.HTTPConfig{Listen: "127.0.0.1:0", ShowOutput: true}
	c.Configs = []config.Config{{Name: "site", Path: siteTree}}
	c.Groups = []registry.GroupConfig{{Name: "web", Path: "/services/web"}}
	c.Elections = []election.Config{{Name: "cron", Path: "/elections/cron", ID: "a1", Observe: true}}
	for i, v := range []string{"1", forged} {
		if _, err := fleet.Publish(t.Context(), b.s, fleet.PublishConfig{Path: siteTree, Keys: map[string][]byte{"k": []byte(v)}, Message: forged + fmt.Sprint(i), Author: forged}); err != nil {
			t.Fatal(err)
		}
	}
	b.ephemeral("/services/web/m1", q(map[string]any{"host": forged, "port": 80, "name": forged, "labels": map[string]string{forged: forged}}))
	b.ephemeral("/services/web/m2", q(map[string]any{"host": "10.0.0.1", "port": 80, "name": forged, "labels": map[string]string{"zone": forged}}))
	b.ephemeral("/elections/cron/_c_11111111-1111-1111-1111-111111111111-latch-0000000000", forged)
	b.ephemeral(fleet.AgentPath("forged"), q(map[string]any{
		"version": forged, "health": "failing", "since": "2026-01-02T03:04:05Z", "configs": map[string]any{forged: map[string]any{"known": 3, "accepted": 1, "path": forged}, "site": map[string]any{"known": 1, "path": siteTree}},
		"files": map[string]string{forged: forged, "nginx": "failed@" + forged}, "services": map[string]any{forged: map[string]any{"state": forged}, "web": map[string]any{"state": forged, "check": forged}},
		"leads": []string{forged}, "holds": []string{forged}, "maintenance": forged, "more": map[string]int{forged: 2},
		"faults": []map[string]any{{"code": forged, "subject": forged, "stage": forged, "exit": 3}},
	}))
	if err := fleet.Freeze(t.Context(), b.s, siteTree, forged, forged); err != nil {
		t.Fatal(err)
	}
	a := b.start(c)
	a.ready()
	w := newBrowser(t, a.HTTPAddr())
	for _, s := range append(slices.Clone(sections), pageSection{"/hosts/forged", "host"}, pageSection{"/configs/site?from=1&to=2", "config"}) {
		w.section(s, "forged")
		if eval[bool](w, `typeof pwned !== "undefined"`) {
			t.Errorf("%s ran a script of a znode", s.Path)
		}
		if n := eval[int](w, `document.querySelectorAll("main img, main script, main b").length`); n != 0 {
			t.Errorf("%s: %d elements of a znode", s.Path, n)
		}
		bad := eval[[]string](w, `(() => { const out = []; const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
			for (let n; n = walk.nextNode();) if (/[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u2028\u2029\u001b\u00ad]/.test(n.data) || /\nall healthy/.test(n.data) && n.parentElement.tagName !== "CODE" && getComputedStyle(n.parentElement).whiteSpace.startsWith("pre")) out.push(n.parentElement.outerHTML.slice(0, 200));
			for (const e of document.querySelectorAll("*")) for (const a of e.attributes) if (/[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u001b]/.test(a.value) && a.name !== "data-key") out.push(e.tagName + " " + a.name);
			return out })()`)
		if len(bad) != 0 {
			t.Errorf("%s: %s", s.Path, strings.Join(bad, "\n"))
		}
	}
}
