package template

import (
	"fmt"
	"os/user"
	"strconv"
)

// ids returns the numbers of a user and a group given by name or number; -1
// for an empty name.
func ids(owner, group string) (uid, gid int, err error) {
	uid, gid = -1, -1
	if owner != "" {
		if uid, err = id(owner, func() (string, error) {
			u, err := user.Lookup(owner)
			if err != nil {
				return "", err
			}
			return u.Uid, nil
		}); err != nil {
			return -1, -1, fmt.Errorf("owner %q: %w", owner, err)
		}
	}
	if group != "" {
		if gid, err = id(group, func() (string, error) {
			g, err := user.LookupGroup(group)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		}); err != nil {
			return -1, -1, fmt.Errorf("group %q: %w", group, err)
		}
	}
	return uid, gid, nil
}

func id(name string, lookup func() (string, error)) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	number, err := lookup()
	if err != nil {
		return -1, err
	}
	return strconv.Atoi(number)
}
