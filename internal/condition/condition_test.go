package condition

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSet_KeepsItsBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []bool
		var texts []string
		s := Set{
			Changed:  func(_ Condition, open bool) { calls = append(calls, open) },
			Reworded: func(c Condition) { texts = append(texts, c.Text) },
		}
		s.Open("template-failed", "web", "first")
		since := time.Now()
		time.Sleep(time.Minute)
		s.Open("template-failed", "web", "second")
		s.Open("template-failed", "web", "second")
		s.Set("template-failed", "api", errors.New("third"))
		got := s.List()
		if len(got) != 2 || got[0].Text != "second" || !got[0].Since.Equal(since) || got[1].Subject != "api" {
			t.Errorf("got %+v", got)
		}
		s.Retain("template-failed", func(subject string) bool { return subject == "web" })
		if s.Has("template-failed", "api") || !s.Has("template-failed", "web") {
			t.Error("Retain kept the wrong one")
		}
		if !s.Close("template-failed", "web") || s.Close("template-failed", "web") {
			t.Error("Close reports the wrong thing")
		}
		if len(calls) != 4 || len(texts) != 1 || texts[0] != "second" {
			t.Errorf("got %v, %q, want 4 changes and 1 text", calls, texts)
		}
	})
}
