package bench

import (
	"math"
	"slices"
	"time"
)

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

// median returns the median of values, of which there is one at least.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

const (
	// parts is into how many parts a run is split to see how it drifts.
	parts = 5
	// leastTurns is the least number of turns for a band. The band of a few turns
	// holds all of them.
	leastTurns = 2
)

// band returns the band of the median of values, which are in the order of
// measurement. The band has 99 % confidence by order statistics, which assume no
// distribution. It is at least as wide as the medians of five parts of the run,
// without the lowest and the highest, because a disturbance of the machine lasts
// longer than a turn.
func band(values []float64) (low, high float64) { //nolint:nonamedreturns // Two numbers.
	n := len(values)
	sorted := slices.Sorted(slices.Values(values))
	reach := 2.58 * math.Sqrt(float64(n)) / 2
	low = sorted[max(0, int(math.Floor(float64(n)/2-reach)))]
	high = sorted[min(n-1, int(math.Ceil(float64(n)/2+reach)))]
	each := n / parts
	if each < 3 {
		return low, high
	}
	var medians []float64
	for i := range parts {
		medians = append(medians, median(values[i*each:(i+1)*each]))
	}
	slices.Sort(medians)
	return min(low, medians[1]), max(high, medians[parts-2])
}

// turns runs a case turn by turn: rounds turns, and half as many more, twice at
// most, while row is near its limit.
func (e *env) turns(rounds int, row func() Row, turn func(i int) error) error {
	for i := range 2 * rounds {
		again := i >= rounds && (i-rounds)%max(rounds/2, 1) == 0
		if i >= rounds && e.cfg.Quick || again && row().Verdict() != Near {
			return nil
		}
		if err := turn(i); err != nil {
			return err
		}
	}
	return nil
}
