package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Why a member does not serve, or serves though it is not registered.
const (
	StandingHeld     = "held"     // gone with many others: it serves
	StandingFlapping = "flapping" // it comes and goes: it does not serve
	StandingSpared   = "spared"   // it comes and goes, and serves because too few others do
	StandingGone     = "gone"     // not registered
)

// Standing says why a member does not serve, or serves though it is not registered.
type Standing struct {
	ID      string    `json:"id"`
	Node    string    `json:"node"`             // host that registered
	Address string    `json:"address"`          // host:port
	Serves  bool      `json:"serves,omitempty"` // it may get traffic all the same
	State   string    `json:"state"`            // held, flapping, spared, gone, or the status that the member has: draining, maintenance, down
	Since   time.Time `json:"since"`            // of the state
	Until   time.Time `json:"until,omitzero"`   // when the state ends if nothing changes
	// Penalty is what a flapping member was charged, as far as it has not decayed, and
	// Limit what makes it flapping.
	Penalty int `json:"penalty,omitempty"`
	Limit   int `json:"limit,omitempty"`
}

// String says the standing in words: "out since 12:03:10: flapping, 2,700 of 2,500, back
// at 12:05:40 if it stays".
func (s Standing) String() string {
	since := s.Since.Local().Format(time.TimeOnly)
	until := s.Until.Local().Format(time.TimeOnly)
	penalty := fmt.Sprintf("%s of %s", thousands(s.Penalty), thousands(s.Limit))
	switch s.State {
	case StandingHeld:
		text := "gone from ZooKeeper with many others since " + since + ": it is kept"
		if !s.Until.IsZero() {
			text += " until " + until
		}
		return text
	case StandingFlapping:
		return fmt.Sprintf("out since %s: flapping, %s, back at %s if it stays", since, penalty, until)
	case StandingSpared:
		return fmt.Sprintf("flapping since %s, %s: it serves because too few others do", since, penalty)
	case StandingGone:
		return "out since " + since + ": not registered"
	case StatusDown:
		return "out since " + since + ": down, as it says itself"
	}
	return "out since " + since + ": " + s.State
}

// thousands prints a number below a million with a comma.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%s", n/1000, strings.TrimPrefix(strconv.Itoa(1000+n%1000), "1"))
}
