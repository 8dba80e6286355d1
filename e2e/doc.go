// Package e2e holds no code: its tests run the real program, as processes,
// against a real ZooKeeper and a real nginx, the way an operator runs it.
package e2e
