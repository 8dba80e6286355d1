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
		s.Open(TemplateFailed, "web", "first")
		since := time.Now()
		time.Sleep(time.Minute)
		s.Open(TemplateFailed, "web", "second")
		s.Open(TemplateFailed, "web", "second")
		s.Set(TemplateFailed, "api", errors.New("third"))
		got := s.List()
		if len(got) != 2 || got[0].Text != "second" || !got[0].Since.Equal(since) || got[1].Subject != "api" {
			t.Errorf("got %+v", got)
		}
		s.Retain(TemplateFailed, func(subject string) bool { return subject == "web" })
		if s.Has(TemplateFailed, "api") || !s.Has(TemplateFailed, "web") {
			t.Error("Retain kept the wrong one")
		}
		if !s.Close(TemplateFailed, "web") || s.Close(TemplateFailed, "web") {
			t.Error("Close reports the wrong thing")
		}
		if len(calls) != 4 || len(texts) != 1 || texts[0] != "second" {
			t.Errorf("got %v, %q, want 4 changes and 1 text", calls, texts)
		}
	})
}
