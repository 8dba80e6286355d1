package bench

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestVerdict_Bands(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want string
	}{
		{Row{Ours: 1}, ""},
		{Row{Floor: 1, Ratio: 1.2, Limit: 1.2}, Met},
		{Row{Floor: 1, Ratio: 1.1, Limit: 1.2, Low: 1, High: 1.2}, Met},
		{Row{Floor: 1, Ratio: 1.1, Limit: 1.2, Low: 1, High: 1.3}, Near},
		{Row{Floor: 1, Ratio: 1.9, Limit: 1.2, Low: 1.5, High: 3}, Near},
		{Row{Floor: 1, Ratio: 1.9, Limit: 1.2, Low: 1.6, High: 3}, Missed},
		{Row{Ours: 109, Limit: 100}, Near},
		{Row{Ours: 111, Limit: 100}, Missed},
		{Row{Ours: 111, Limit: 100, Unit: "ms"}, Near},
	} {
		if got := c.row.Verdict(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.row, got, c.want)
		}
	}
}

// What disturbs both sides of a turn alike does not move the ratio.
func TestCompareSamples_Pairs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var ours, floor samples
	for i := range 100 {
		load := 1 + 20*float64(i)/100 // the machine gets busier and busier
		base := load * (0.9 + 0.2*r.Float64())
		floor = append(floor, time.Duration(base*1e6))
		ours = append(ours, time.Duration(base*1.5e6))
	}
	row := compareSamples("case", 1, ours, floor, 1.2, "")
	if row.Ratio < 1.49 || row.Ratio > 1.51 || row.Low < 1.49 || row.High > 1.51 {
		t.Errorf("got ratio %v in %v to %v, want 1.5", row.Ratio, row.Low, row.High)
	}
	if one := compareSamples("case", 1, ours[:1], floor[:1], 1.2, ""); one.High != 0 {
		t.Errorf("one turn has a band: %+v", one)
	}
}

// A few turns that disagree have no verdict but near: the next run may have the
// opposite ones.
func TestCompareSamples_FewTurns(t *testing.T) {
	const ms = time.Millisecond
	floor := samples{ms, ms, ms}
	for _, ours := range []samples{{ms / 2, ms / 2, 4 * ms}, {ms / 2, 4 * ms, 4 * ms}} {
		if row := compareSamples("case", 1, ours, floor, 1, ""); row.Verdict() != Near {
			t.Errorf("%v: got %s: %s", ours, row.Verdict(), row)
		}
	}
}

func TestBand(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(i)
	}
	// A run that drifts has a band that shows it: the second and the fourth part.
	if low, high := band(values); low != 30 || high != 70 {
		t.Errorf("got %v to %v, want 30 to 70", low, high)
	}
	mixed := make([]float64, 0, 100)
	for i := range 100 {
		mixed = append(mixed, float64(i*37%100))
	}
	if low, high := band(mixed); low != 37 || high != 63 {
		t.Errorf("without drift: got %v to %v, want 37 to 63", low, high)
	}
}

func TestTurns_MoreWhileNear(t *testing.T) {
	const near, good = 1.3, 1.0
	for _, c := range []struct {
		ratio func(i int) float64
		want  int
	}{
		{func(int) float64 { return good }, 10},
		{func(i int) float64 { return map[bool]float64{true: near, false: good}[i <= 10] }, 15},
		{func(int) float64 { return near }, 20},
	} {
		e, got := &env{}, 0
		row := func() Row { return Row{Floor: 1, Ratio: c.ratio(got), Limit: 1.2} }
		if err := e.turns(10, row, func(int) error { got++; return nil }); err != nil || got != c.want {
			t.Errorf("got %d turns and %v, want %d", got, err, c.want)
		}
	}
}

func TestAgree(t *testing.T) {
	limited := func(name string, ratio, low, high float64) Row {
		return Row{Case: name, Floor: 1, Ratio: ratio, Low: low, High: high, Limit: 1.2}
	}
	a := Report{Rows: []Row{
		limited("same", 1, 0.9, 1.1), limited("near then missed", 1.4, 1.3, 1.6), limited("gone", 1, 1, 1), {Case: "told", Ours: 7},
	}}
	b := Report{Rows: []Row{
		limited("same", 1.1, 1, 1.2), limited("near then missed", 1.7, 1.6, 1.9), limited("new", 1, 1, 1), {Case: "told", Ours: 70},
	}}
	g := Agree(a, b)
	if g.Same != 1 || len(g.Shifted) != 1 || len(g.Flipped) != 0 || !slices.Equal(g.Alone, []string{"gone, 0", "new, 0"}) {
		t.Errorf("got %+v", g)
	}
	if err := g.Err(); err != nil {
		t.Errorf("runs that differ within their bands: %v", err)
	}
	b.Rows[0] = limited("same", 3, 2.8, 3.1)
	g = Agree(a, b)
	if len(g.Flipped) != 1 || g.Err() == nil {
		t.Errorf("a flip: got %+v and no error", g)
	}
	var out strings.Builder
	if err := g.Write(&out); err != nil || !strings.Contains(out.String(), "flipped: same, 0: met 1 (0.90 to 1.10), then missed 3 (2.80 to 3.10)\n") {
		t.Errorf("got %v and\n%s", err, out.String())
	}
	if Agree(a, Report{}).Err() == nil {
		t.Error("runs without a common case agree")
	}
}
