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
	// Ratio is Ours divided by Floor. For a case that was measured in turns, it is
	// the median of the turns' ratios. It is 0 without a floor.
	Ratio float64 `json:"ratio,omitempty"`
	// Limit bounds the ratio of a case with a floor, else its value; 0: no limit.
	Limit float64 `json:"limit,omitempty"`
	// Low and High are the band in which a run's value lies, see band; 0: there is
	// only one value.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	Note string  `json:"note,omitempty"`
}

// Report is the outcome of one run.
type Report struct {
	When time.Time `json:"when"`
	Go   string    `json:"go"`
	CPUs int       `json:"cpus"`
	Rows []Row     `json:"rows"`
}

// Find returns the row of a case and size.
func (r Report) Find(name string, size int) (Row, bool) {
	i := slices.IndexFunc(r.Rows, func(x Row) bool { return cmp.Or(cmp.Compare(x.Case, name), cmp.Compare(x.Size, size)) == 0 })
	if i < 0 {
		return Row{}, false
	}
	return r.Rows[i], true
}

// value is what the limit of a row is about.
func value(r Row) float64 {
	if r.Floor > 0 {
		return r.Ratio
	}
	return r.Ours
}

// compare is a row with a floor.
func compare(name string, size int, unit string, ours, floor, limit float64, note string) Row {
	r := Row{Case: name, Size: size, Unit: unit, Ours: ours, Floor: floor, Limit: limit, Note: note}
	if floor > 0 {
		r.Ratio = ours / floor
	}
	return r
}

// compareSamples is a row with a floor, in milliseconds, both measured in turns:
// what one turn's load does to both sides cancels out in its ratio.
func compareSamples(name string, size int, ours, floor samples, limit float64, note string) Row {
	r := compare(name, size, "ms", ours.median(), floor.median(), limit, note)
	n := min(len(ours), len(floor))
	if n < leastTurns {
		return r
	}
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = float64(ours[i]) / float64(floor[i])
	}
	r.Ratio = median(ratios)
	r.Low, r.High = band(ratios)
	return r
}

// told is a row without a floor, in milliseconds.
func told(name string, size int, s samples, limit float64, note string) Row {
	r := Row{Case: name, Size: size, Unit: "ms", Ours: s.median(), Limit: limit, Note: note}
	if len(s) >= leastTurns {
		values := make([]float64, len(s))
		for i, d := range s {
			values[i] = ms(d)
		}
		r.Low, r.High = band(values)
	}
	return r
}
