package files

import (
	"fmt"
	"os/user"
	"strconv"
)

// ids returns the numbers of a user and a group given by name or number; -1
// for an empty name.
func ids(owner, group string) (int, int, error) {
	uid, err := id(owner, func(name string) (string, error) {
		u, lookupErr := user.Lookup(name)
		if lookupErr != nil {
			return "", lookupErr
		}
		return u.Uid, nil
	})
	if err != nil {
		return -1, -1, fmt.Errorf("owner %q: %w", owner, err)
	}
	gid, err := id(group, func(name string) (string, error) {
		g, lookupErr := user.LookupGroup(name)
		if lookupErr != nil {
			return "", lookupErr
		}
		return g.Gid, nil
	})
	if err != nil {
		return -1, -1, fmt.Errorf("group %q: %w", group, err)
	}
	return uid, gid, nil
}

func id(name string, lookup func(string) (string, error)) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	number, err := lookup(name)
	if err != nil {
		return -1, err
	}
	return strconv.Atoi(number)
}
