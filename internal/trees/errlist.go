package trees

import (
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"
)

// AllErrors joins a list of errors; nil when the list is empty. Several errors print one
// per line.
func AllErrors(errs *multierror.Error) error {
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
