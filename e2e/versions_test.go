package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest"
	"github.com/zkagent/zkagent/internal/zktest/testhelp"
	"github.com/zkagent/zkagent/session"
)

// versionsPage has a row for each server version that is tried.
const versionsPage = "../docs/outages.md"

// TestVersions makes the row of the server that the tests run, and wants it on the
// page. An agent does its whole job with it, unless it is too old.
func TestVersions(t *testing.T) {
	testhelp.OnlyAll(t, "the installed release does not change from day to day")
	t.Parallel()
	server := zktest.Start(t)
	s := dialed(t, server.Addr(), nil)
	less := "nothing"
	if err := s.CheckServer(t.Context()); errors.Is(err, session.ErrOldServer) {
		less = "refused: " + err.Error()
		a := newAgent(t, "host-1", "zookeeper {\n  servers = [\""+server.Addr()+"\"]\n}\n")
		if out, code := a.run(t, "doctor", "--config", a.path("agent.hcl")); code == 0 || !strings.Contains(out, err.Error()) {
			t.Errorf("doctor: exit %d\n%s", code, out)
		}
	} else {
		doesItsJob(t, server.Addr(), "", "")
		less = cmp.Or(strings.Join(differences(t, s), "; "), less)
	}
	row := fmt.Sprintf("| %s | %s | %s |", zktest.Version(t, zktest.Release), map[string]string{"": "bookworm"}[zktest.Release]+zktest.Release, less)
	page, err := os.ReadFile(versionsPage)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(string(page), "\n"), row) {
		t.Errorf("%s has no row\n%s", versionsPage, row)
	}
}

func dialed(t *testing.T, addr string, m session.SASLMechanism) *session.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := session.Dial(ctx, session.Config{Servers: strings.Split(addr, ","), Timeout: 10 * time.Second, SASL: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// differences are what a server does otherwise than the others.
func differences(t *testing.T, s *session.Session) []string {
	t.Helper()
	ctx := t.Context()
	var list []string
	if w, err := s.WatchRecursive(ctx, "/"); err != nil || !w.Live() {
		list = append(list, "no recursive watches")
	}
	if _, err := s.WhoAmI(ctx); err != nil {
		list = append(list, "`zk whoami` is not known")
	}
	secret := session.ACL{Perms: session.PermAdmin | session.PermDelete, Scheme: "world", ID: "anyone"}
	if _, _, err := s.Create(ctx, "/secret", nil, session.Persistent, secret); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Exists(ctx, "/secret"); errors.Is(err, session.ErrNoAuth) {
		list = append(list, "whether a znode exists needs READ")
	}
	o := zktest.WithSASL(t, zktest.Options{}, zktest.DigestSection(map[string]string{"agent": "secret"}))
	o.JVMFlags = slices.DeleteFunc(o.JVMFlags, func(flag string) bool { return strings.Contains(flag, "fips-mode") })
	m := session.DigestMD5("agent", "secret")
	dial, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	proved, err := session.Dial(dial, session.Config{Servers: []string{zktest.Start(t, o).Addr()}, Timeout: 10 * time.Second, SASL: m})
	switch {
	case err == nil:
		_ = proved.Close()
	case errors.Is(err, session.ErrAuthFailed):
		list = append(list, "DIGEST-MD5 needs `-Dzookeeper.fips-mode=false`")
	default:
		t.Fatal(err)
	}
	return list
}
