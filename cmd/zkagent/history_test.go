package main

import (
	"io"
	"strings"
	"testing"

	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
)

// TestExplain_StageOnce: the error of a template names its stage, so explain does not repeat it.
func TestExplain_StageOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printStory(&term.Console{Out: &out, Err: io.Discard}, &story{Bundle: "app", Status: &show.TemplateStatus{
		Name: "app", State: "failed", Stage: "reload", Error: "reload failed: exit status 1",
	}})
	if want := "  reload failed: exit status 1\n"; !strings.Contains(out.String(), want) {
		t.Errorf("got %q, want the line %q", out.String(), want)
	}
}
