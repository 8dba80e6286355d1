package bench

import (
	"cmp"
	"slices"
	"time"
)

// Row is one measured case.
type Row struct {
	Case  string  `json:"case"`
	Size  int     `json:"size"` // keys, members, sessions: what the case grows with
	Unit  string  `json:"unit"` // of Ours and Floor
	Ours  float64 `json:"ours"`
	Floor float64 `json:"floor,omitempty"` // 0: there is none
	// Ratio is Ours by Floor, 0 without a floor.
	Ratio float64 `json:"ratio,omitempty"`
	// Limit is what the case is to stay within: the ratio where there is a
	// floor, else the value; 0: it is only told.
	Limit float64 `json:"limit,omitempty"`
	// Low and High bound what the limit is about: of a case that was measured
	// turn by turn, without the highest and the lowest of five parts of the run.
	// 0: the one value is all there is.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	Note string  `json:"note,omitempty"`
}

// Verdicts.
const (
	Met    = "met"    // the limit is kept all through the run
	Near   = "near"   // it is kept in a part of the run, or nearly
	Missed = "missed" // it is exceeded all through the run
)

// tolerance is by how much a value may exceed its limit and still be near it: two
// runs on one machine differ by that much.
const tolerance = 1.25

// countTolerance is the same for counts: an event may be read together with
// another, or apart from it.
const countTolerance = 1.1

// Verdict tells how a row keeps its limit; "" without one.
func (r Row) Verdict() string {
	v := value(r)
	low, high, t := v, v, countTolerance
	if r.High > 0 {
		low, high = r.Low, r.High
	}
	if r.Floor > 0 || r.Unit == "ms" {
		t = tolerance
	}
	switch {
	case r.Limit == 0:
		return ""
	case high <= r.Limit:
		return Met
	case min(low, v) <= r.Limit*t:
		return Near
	}
	return Missed
}

// Within reports whether the row keeps its limit, nearly at least.
func (r Row) Within() bool { return r.Verdict() != Missed }

// Report is the outcome of one run.
type Report struct {
	When time.Time `json:"when"`
	Go   string    `json:"go"`
	CPUs int       `json:"cpus"`
	Rows []Row     `json:"rows"`
}

// samples are durations of one thing.
type samples []time.Duration

// median returns the median in milliseconds, 0 for none.
func (s samples) median() float64 { return s.at(0.5) }

// at returns a quantile in milliseconds.
func (s samples) at(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return ms(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// compare is a row with a floor.
func compare(name string, size int, unit string, ours, floor, limit float64, note string) Row {
	r := Row{Case: name, Size: size, Unit: unit, Ours: ours, Floor: floor, Limit: limit, Note: note}
	if floor > 0 {
		r.Ratio = ours / floor
	}
	return r
}

// parts is into how many parts a run is split to tell how sure its ratio is.
const parts = 5

// compareSamples is a row with a floor, in milliseconds, both measured in turns.
func compareSamples(name string, size int, ours, floor samples, limit float64, note string) Row {
	r := compare(name, size, "ms", ours.median(), floor.median(), limit, note)
	n := min(len(ours), len(floor)) / parts
	if n < 3 {
		return r
	}
	var ratios []float64
	for i := range parts {
		ratios = append(ratios, ours[i*n:(i+1)*n].median()/floor[i*n:(i+1)*n].median())
	}
	slices.Sort(ratios)
	r.Low, r.High = ratios[1], ratios[parts-2]
	return r
}

// Find returns the row of a case and size.
func (r Report) Find(name string, size int) (Row, bool) {
	i := slices.IndexFunc(r.Rows, func(x Row) bool { return cmp.Or(cmp.Compare(x.Case, name), cmp.Compare(x.Size, size)) == 0 })
	if i < 0 {
		return Row{}, false
	}
	return r.Rows[i], true
}
