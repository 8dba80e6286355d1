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
	Note  string  `json:"note,omitempty"`
}

// Within reports whether the row keeps its limit.
func (r Row) Within() bool {
	switch {
	case r.Limit == 0:
		return true
	case r.Floor > 0:
		return r.Ratio <= r.Limit
	}
	return r.Ours <= r.Limit
}

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

// Find returns the row of a case and size.
func (r Report) Find(name string, size int) (Row, bool) {
	i := slices.IndexFunc(r.Rows, func(x Row) bool { return cmp.Or(cmp.Compare(x.Case, name), cmp.Compare(x.Size, size)) == 0 })
	if i < 0 {
		return Row{}, false
	}
	return r.Rows[i], true
}
