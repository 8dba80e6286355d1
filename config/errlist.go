package config

import (
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// all is the error of a list, nil when it is empty. One error reads as itself, and
// of several each has a line.
func all(errs *multierror.Error) error {
	if errs == nil {
		return nil
	}
	errs.ErrorFormat = inLines
	return errs.ErrorOrNil()
}

func inLines(list []error) string {
	if len(list) == 1 {
		return list[0].Error()
	}
	lines := []string{fmt.Sprintf("%d errors:", len(list))}
	for _, err := range list {
		lines = append(lines, "  "+strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	return strings.Join(lines, "\n")
}
