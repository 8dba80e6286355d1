package web

import (
	"context"
	"time"

	"github.com/zkagent/zkagent/fleet"
)

// Bounds of what is read for the page.
const (
	cacheFresh = 3 * time.Second // how long one reading serves everybody who looks
	cacheWait  = 4 * time.Second // for ZooKeeper to answer
)

// Fleet is the records of all hosts, as read at a moment.
type Fleet struct {
	Hosts []fleet.HostStatus `json:"hosts"`
	At    time.Time          `json:"at,omitzero"`     // zero: it was never read
	Error string             `json:"error,omitempty"` // of the newest reading; Hosts is then older
}

// readFleet returns the fleet, at most cacheFresh old. No watch follows it.
func (s *Server) readFleet(ctx context.Context) Fleet {
	f, err := s.fleet.get(ctx, func(ctx context.Context) (Fleet, error) {
		zk, err := s.Source.Session(ctx)
		if err != nil {
			return Fleet{}, err
		}
		hosts, err := fleet.Agents(ctx, zk)
		return Fleet{Hosts: hosts, At: time.Now()}, err
	})
	if err != nil {
		f.Error = err.Error()
	}
	return f
}
