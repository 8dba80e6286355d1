// Package lists has what package slices does not have.
package lists

// Map returns what fn makes of each element of a list.
func Map[E, R any](list []E, fn func(E) R) []R {
	made := make([]R, len(list))
	for i, e := range list {
		made[i] = fn(e)
	}
	return made
}
