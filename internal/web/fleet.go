package web

import (
	"context"
	"sync"
	"time"

	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// Bounds of what is read for the page.
const (
	fleetFresh = 3 * time.Second // how long one reading serves everybody who looks
	fleetWait  = 4 * time.Second // for ZooKeeper to answer
)

// Fleet is the records of all hosts, as read at a moment.
type Fleet struct {
	Hosts []fleet.HostStatus `json:"hosts"`
	At    time.Time          `json:"at,omitzero"`     // zero: it was never read
	Error string             `json:"error,omitempty"` // of the newest reading; Hosts is then older
}

// fleetReader reads the fleet on demand: no watch follows it. It is
// safe for concurrent use; one reading serves all who look at the same time.
type fleetReader struct {
	session func(context.Context) (*session.Session, error)

	mu    sync.Mutex // mu guards everything below, and is held while one reads.
	fleet Fleet
	tried time.Time
}

// read returns the fleet, at most fleetFresh old.
func (f *fleetReader) read(ctx context.Context) Fleet {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.tried) < fleetFresh {
		return f.fleet
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetWait)
	defer cancel()
	hosts, err := f.hosts(ctx)
	f.tried = time.Now()
	if err != nil {
		f.fleet.Error = err.Error()
		return f.fleet
	}
	f.fleet = Fleet{Hosts: hosts, At: f.tried}
	return f.fleet
}

func (f *fleetReader) hosts(ctx context.Context) ([]fleet.HostStatus, error) {
	s, err := f.session(ctx)
	if err != nil {
		return nil, err
	}
	return fleet.Agents(ctx, s)
}
