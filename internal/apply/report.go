package apply

import (
	"errors"
	"regexp"

	"github.com/zkagent/zkagent/template"
)

// Kept reports whether the files stay as they are because the data for new ones
// are not there.
func (r *Result) Kept() bool { return r.Empty() != nil || r.MissingKey() != nil }

// Empty is the error of a group that keeps the files as they are.
func (r *Result) Empty() error { return r.of(template.ErrEmptyGroup) }

// MissingKey is the error of a key that keeps the files as they are.
func (r *Result) MissingKey() error { return r.of(template.ErrNoKey) }

func (r *Result) of(class error) error {
	if errors.Is(r.Err, class) {
		return r.Err
	}
	return nil
}

// Failure is the error of an apply that went wrong.
func (r *Result) Failure() error {
	if r.Kept() {
		return nil
	}
	return r.Err
}

// stagedName is the name of a file before it takes the place of its destination.
var stagedName = regexp.MustCompile(`\.([^/\s:"]+)\.zkagent-new-[A-Z2-7]+`)

// plainError is an error whose text names destinations: a staged file has another
// name at each try, and the reader does not know it.
type plainError struct {
	error
	text string
}

func (e *plainError) Error() string { return e.text }

func (e *plainError) Unwrap() error { return e.error }

// plain makes the text of an error name destinations.
func plain(err error) error {
	if err == nil || !stagedName.MatchString(err.Error()) {
		return err
	}
	return &plainError{err, stagedName.ReplaceAllString(err.Error(), "$1")}
}
