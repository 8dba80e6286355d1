// Package bench compares zkagent with floors. A floor does the least that any
// program could do for the same result. It runs in the same process, against the
// same server and, iteration by iteration, at the same time. The reports contain
// ratios of medians and counts, because milliseconds of one machine mean little on
// another.
//
// The command bench/cmd/zkbench prints the table and writes JSON and a picture;
// docs/performance.md explains them.
package bench
