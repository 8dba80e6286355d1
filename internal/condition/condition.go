// Package condition keeps the open conditions of the agent: what is wrong, since when,
// and why, under codes that do not change.
//
// Guarantees: it is safe for concurrent use. A condition keeps its beginning while it
// stays open, also when its text changes.
//
// Not here: the decision to open a condition.
package condition

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// Condition is one problem.
type Condition struct {
	Code    string    `json:"code"`              // such as "template-failed"
	Subject string    `json:"subject,omitempty"` // what it is about, such as the name of a template
	Since   time.Time `json:"since"`
	Text    string    `json:"text"`
	Exit    int       `json:"exit,omitempty"` // status of the command that failed; 0: none did
}

// Name is the code with the subject, if it has one.
func (c Condition) Name() string {
	if c.Subject == "" {
		return c.Code
	}
	return c.Code + " " + c.Subject
}

type key struct{ code, subject string }

// Set is the open conditions.
type Set struct {
	// Changed, when set before the first use, is called after each opening and
	// closing, outside of the lock.
	Changed func(c Condition, open bool)
	// Reworded, likewise, is called after each change of text.
	Reworded func(c Condition)

	mu   sync.Mutex // mu guards open.
	open map[key]Condition
}

// Open opens a condition or changes its text.
func (s *Set) Open(k *Kind, subject, text string) { s.OpenWith(k, subject, text, 0) }

// OpenWith is Open with the exit status of the command that failed.
func (s *Set) OpenWith(kind *Kind, subject, text string, exit int) {
	k := key{kind.Code, subject}
	s.mu.Lock()
	c, was := s.open[k]
	if was && c.Text == text && c.Exit == exit {
		s.mu.Unlock()
		return
	}
	if !was {
		c = Condition{Code: kind.Code, Subject: subject, Since: time.Now()}
	}
	c.Text, c.Exit = text, exit
	if s.open == nil {
		s.open = map[key]Condition{}
	}
	s.open[k] = c
	s.mu.Unlock()
	switch {
	case was && s.Reworded != nil:
		s.Reworded(c)
	case !was && s.Changed != nil:
		s.Changed(c, true)
	}
}

// Close closes a condition; it reports whether it was open.
func (s *Set) Close(kind *Kind, subject string) bool {
	k := key{kind.Code, subject}
	s.mu.Lock()
	c, was := s.open[k]
	delete(s.open, k)
	s.mu.Unlock()
	if was && s.Changed != nil {
		s.Changed(c, false)
	}
	return was
}

// SetText opens the condition with a text, and closes it when the text is empty.
func (s *Set) SetText(k *Kind, subject, text string) {
	if text == "" {
		s.Close(k, subject)
		return
	}
	s.Open(k, subject, text)
}

// Set opens the condition when err is not nil, and closes it otherwise.
func (s *Set) Set(k *Kind, subject string, err error) {
	if err == nil {
		s.Close(k, subject)
		return
	}
	exit := 0
	if e, ok := errors.AsType[interface {
		error
		ExitStatus() int
	}](err); ok {
		exit = e.ExitStatus()
	}
	s.OpenWith(k, subject, err.Error(), exit)
}

// Retain closes every condition of the kind whose subject keep refuses, for
// subjects that no longer exist.
func (s *Set) Retain(k *Kind, keep func(subject string) bool) {
	for _, c := range s.List() {
		if c.Code == k.Code && !keep(c.Subject) {
			s.Close(k, c.Subject)
		}
	}
}

// Has reports whether the condition is open.
func (s *Set) Has(k *Kind, subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.open[key{k.Code, subject}]
	return ok
}

// List returns the open conditions, the oldest first.
func (s *Set) List() []Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Without one the list is empty and not nil: as JSON it is [].
	list := slices.AppendSeq([]Condition{}, maps.Values(s.open))
	slices.SortFunc(list, func(a, b Condition) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Subject, b.Subject))
	})
	return list
}
