package main

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNativeHandler(t *testing.T) {
	dir, err := os.MkdirTemp("", "zka") //nolint:usetesting // sockets have short paths.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	journal, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	var out bytes.Buffer
	h := newNativeHandler(path, &journalHandler{out: &out, level: slog.LevelInfo})
	if h == nil {
		t.Fatal("the journal was not reached")
	}
	log := slog.New(h).With("template", "web")
	log.Debug("not shown")
	log.WithGroup("zk").Error("apply failed", "err", errors.New("line 1\nline 2"), "took", 3)
	buf := make([]byte, 64<<10)
	n, err := journal.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	got := string(buf[:n])
	for _, want := range []string{
		"PRIORITY=3\n", "SYSLOG_IDENTIFIER=zkagent\n", "MESSAGE=apply failed ", "template=web", "ZKAGENT_EVENT=apply failed\n",
		"ZKAGENT_TEMPLATE=web\n", "ZKAGENT_ZK_ERR\n\x0d\x00\x00\x00\x00\x00\x00\x00line 1\nline 2\n", "ZKAGENT_ZK_TOOK=3\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	journal.Close()
	log.Info("later")
	if !strings.HasPrefix(out.String(), "<6>later") {
		t.Errorf("without the journal, standard error got %q", out.String())
	}
	if newNativeHandler(filepath.Join(dir, "none"), &journalHandler{}) != nil {
		t.Error("a journal that is not there was reached")
	}
}

func TestFieldName(t *testing.T) {
	for name, want := range map[string]string{"took": "ZKAGENT_TOOK", "a.b-c": "ZKAGENT_A_B_C", "": ""} {
		if got := fieldName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	if got := fieldName(strings.Repeat("x", 100)); len(got) != 64 {
		t.Errorf("got %d characters", len(got))
	}
}
