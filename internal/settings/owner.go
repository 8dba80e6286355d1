package settings

import (
	"os/user"
	"strconv"

	"github.com/zkagent/zkagent/internal/apply"
)

// checkOwner checks that the user and the group of a file exist on this host.
func (s *Settings) checkOwner(b *fileBlock, t apply.FileConfig) {
	if t.Owner != "" {
		if _, err := user.Lookup(t.Owner); err != nil && !isID(t.Owner) {
			s.hostAt(b.Owner.At, "Unknown user", "There is no user %q on this host.", t.Owner)
		}
	}
	if t.Group != "" {
		if _, err := user.LookupGroup(t.Group); err != nil && !isID(t.Group) {
			s.hostAt(b.Group.At, "Unknown group", "There is no user group %q on this host.", t.Group)
		}
	}
}

// isID reports whether the text is the number of a user or group.
func isID(text string) bool {
	n, err := strconv.ParseUint(text, 10, 32)
	return err == nil && n < 1<<32-1
}
