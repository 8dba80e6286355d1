// Package bench measures zkagent beside floors: the least that any program
// could do for the same result, in the same process, against the same server
// and, iteration by iteration, at the same time. What it reports are ratios of
// medians and counts; milliseconds of one machine mean little on another.
//
// The command bench/cmd/zkbench prints the table and writes JSON and a picture;
// docs/performance.md explains them.
package bench
