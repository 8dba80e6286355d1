package bench

import (
	"errors"
	"fmt"
	"io"
)

// Verdicts.
const (
	Met    = "met"    // the whole band keeps the limit
	Near   = "near"   // the band reaches over the limit, or lies a little above it
	Missed = "missed" // the whole band is well over the limit
)

// tolerance is by how much a value may exceed its limit and still be near it: two
// runs on one machine differ by that much.
const tolerance = 1.25

// countTolerance is the same for counts: an event may be read together with
// another, or apart from it.
const countTolerance = 1.1

// edges returns the band of the row; a value without one is its own band.
func (r Row) edges() (low, high float64) { //nolint:nonamedreturns // Two numbers.
	if r.High > 0 {
		return r.Low, r.High
	}
	return value(r), value(r)
}

// Verdict says how a row keeps its limit; "" without a limit.
func (r Row) Verdict() string {
	low, high := r.edges()
	t := countTolerance
	if r.Floor > 0 || r.Unit == "ms" {
		t = tolerance
	}
	switch {
	case r.Limit == 0:
		return ""
	case high <= r.Limit:
		return Met
	case low <= r.Limit*t:
		return Near
	}
	return Missed
}

// Within reports whether the row keeps its limit, at least nearly.
func (r Row) Within() bool { return r.Verdict() != Missed }

// overlaps reports whether the values of two rows may be the same.
func (r Row) overlaps(o Row) bool {
	low, high := r.edges()
	oLow, oHigh := o.edges()
	return low <= oHigh && oLow <= high
}

// String tells a row's value with its band.
func (r Row) String() string {
	s := number(value(r))
	if r.High > 0 {
		s += fmt.Sprintf(" (%s to %s)", number(r.Low), number(r.High))
	}
	return s
}

// Against returns the rows that met their limit, or nearly, in the former report
// and miss it now by more than both bands explain. It compares ratios and counts
// between machines, but not times.
func (r Report) Against(former Report) []string {
	var worse []string
	for _, row := range r.Rows {
		if old, ok := former.Find(row.Case, row.Size); ok && old.Within() && !row.Within() && !row.overlaps(old) {
			worse = append(worse, fmt.Sprintf("%s, %d: %s, was %s", row.Case, row.Size, row, old))
		}
	}
	return worse
}

// Agreement is how the verdicts of two runs compare.
type Agreement struct {
	Same    int      // rows with the same verdict
	Shifted []string // near in one run, met or missed in the other
	Flipped []string // met in one run, missed in the other
	Alone   []string // rows with a limit that only one of them has
}

// Agree compares the verdicts of two runs.
func Agree(a, b Report) Agreement {
	var g Agreement
	for _, x := range a.Rows {
		if x.Limit == 0 {
			continue
		}
		name := fmt.Sprintf("%s, %d", x.Case, x.Size)
		y, ok := b.Find(x.Case, x.Size)
		if !ok {
			g.Alone = append(g.Alone, name)
			continue
		}
		line := fmt.Sprintf("%s: %s %s, then %s %s", name, x.Verdict(), x, y.Verdict(), y)
		switch v, w := x.Verdict(), y.Verdict(); {
		case v == w:
			g.Same++
		case v == Near || w == Near:
			g.Shifted = append(g.Shifted, line)
		default:
			g.Flipped = append(g.Flipped, line)
		}
	}
	for _, y := range b.Rows {
		if _, ok := a.Find(y.Case, y.Size); !ok && y.Limit > 0 {
			g.Alone = append(g.Alone, fmt.Sprintf("%s, %d", y.Case, y.Size))
		}
	}
	return g
}

// Err is nil when the runs have the same verdict: no row is met in one of them
// and missed in the other.
func (g Agreement) Err() error {
	switch {
	case len(g.Flipped) > 0:
		return fmt.Errorf("%d verdicts flipped between met and missed", len(g.Flipped))
	case g.Same+len(g.Shifted) == 0:
		return errors.New("the runs have no case with a limit in common")
	}
	return nil
}

// Write prints the agreement for people.
func (g Agreement) Write(w io.Writer) error {
	for _, part := range []struct {
		name  string
		lines []string
	}{{"flipped", g.Flipped}, {"near in one run", g.Shifted}, {"in one run only", g.Alone}} {
		for _, line := range part.lines {
			if _, err := fmt.Fprintf(w, "%s: %s\n", part.name, line); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(w, "same verdict: %d, near in one run: %d, flipped: %d, in one run only: %d\n", g.Same, len(g.Shifted), len(g.Flipped), len(g.Alone))
	return err
}
