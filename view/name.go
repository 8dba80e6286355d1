package view

// maxName bounds a name.
const maxName = 128

// IsName reports whether a text from ZooKeeper may name something: an id, a group,
// a file. A name has 1 to 128 letters, digits and ._:- and does not begin with -, so
// it means nothing in a configuration file, a shell, a path or a list of arguments.
// Readers of ZooKeeper apply the rule once, where they read; what does not keep it
// is left out, and reported.
func IsName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '-' || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}
