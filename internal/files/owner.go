package files

import (
	"fmt"
	"os/user"
	"strconv"
)

// ids returns the numbers of a user and a group given by name or number; -1
// for an empty name.
func ids(owner, group string) (int, int, error) {
	uid, err := id("owner", owner, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
	if err != nil {
		return -1, -1, err
	}
	gid, err := id("group", group, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
	return uid, gid, err
}

func id(what, name string, lookup func(string) (string, error)) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	number, err := lookup(name)
	if err != nil {
		return -1, fmt.Errorf("%s %q: %w", what, name, err)
	}
	return strconv.Atoi(number)
}
