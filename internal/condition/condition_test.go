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
		s := Set{Changed: func(_ Condition, open bool) { calls = append(calls, open) }}
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
		if len(calls) != 5 {
			t.Errorf("got %d calls, want 5", len(calls))
		}
	})
}
