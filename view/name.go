package view

import "strings"

// maxName bounds a name.
const maxName = 128

// IsName reports whether a text from ZooKeeper may name something: an id, a group,
// a file. A name has 1 to 128 letters, digits and ._:- and does not begin with -, so
// it means nothing in a configuration file, a shell, a path or a list of arguments.
// Readers of ZooKeeper apply the rule once, where they read; what does not keep it
// is left out, and reported.
func IsName(s string) bool {
	return s != "" && len(s) <= maxName && s[0] != '-' && s != "." && s != ".." && only(s, letters)
}

// letters are the characters that a name and a token have in common.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"

// only reports whether a text has no other characters than those allowed.
func only(s, allowed string) bool { return strings.Trim(s, allowed) == "" }
