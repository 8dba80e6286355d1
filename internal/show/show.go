// Package show is the one way to show the state of an agent and of a fleet: the
// documents, the severity of each state, and the rows that the commands, the page,
// the monitoring check and the metrics have in common.
//
// Not here: how a row looks on a terminal (internal/term) or on the page
// (internal/web).
package show
