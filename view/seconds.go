package view

import (
	"encoding/json"
	"time"
)

// Seconds is a duration that JSON spells as a number of seconds. Fields of this type
// end in _seconds.
type Seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Seconds) UnmarshalJSON(data []byte) error {
	var n float64
	err := json.Unmarshal(data, &n)
	*s = Seconds(n * float64(time.Second))
	return err
}

// String implements fmt.Stringer.
func (s Seconds) String() string { return time.Duration(s).String() }
