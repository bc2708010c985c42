package server

import (
	"sync/atomic"
	"time"

	"cascadekv/cascade"
	"cascadekv/cascade/residency"
	"cascadekv/internal/admin"
)

// counters are the server's own, as admin.Snapshot and admin.Counters report them.
type counters struct {
	commands, polled, accepted, refused, dropped, protocolErrors, authFailures atomic.Uint64

	losses residency.Losses // of look-ups whose client has gone

	reloadOK atomic.Bool
	zeroCopy atomic.Uint64 // bytes of values sent by reference
}

// adminCounters are what the HTTP side reports beside the snapshot.
func (s *Server) adminCounters() admin.Counters {
	c := &s.counters
	n := admin.Counters{
		Accepted: c.accepted.Load(), Refused: c.refused.Load(), AuthFailures: c.authFailures.Load(), ProtocolErrors: c.protocolErrors.Load(),
		ReloadOK: c.reloadOK.Load(),
	}
	n.Stored.Blocks, n.Stored.Bytes = s.jobs.Stored()
	n.Loaded.Blocks, n.Loaded.Bytes = s.jobs.Loaded()
	return n
}

// slowAnswer is what a look-up takes at least whose client may not have waited for it.
const slowAnswer = 20 * time.Millisecond

// untold counts the keys of a look-up as lost if its client did not wait for the answer.
func untold(c *conn, keys int, began time.Time) {
	if time.Since(began) > slowAnswer && c.sock.HungUp() {
		c.srv.counters.losses.Add(residency.StepLookup, "untold", uint64(keys))
	}
}

const (
	// transitShare is the part of memory that values which arrive from others
	// than the rank's own user may take, and stalledShare the part that replies
	// which are not read may borrow without being hurried.
	transitShare = 2
	stalledShare = 4
)

func (s *Server) held() admin.Held {
	bytes, views, pins, stages := s.budget.Used()
	more, moreBytes := s.opt.Store.SharedIndex().Held()
	return admin.Held{
		Bytes: bytes + moreBytes, Views: views + more, Pins: pins, Stages: stages,
		Regions: s.jobs.Regions(), Jobs: s.jobs.Unfinished(),
	}
}

// Snapshot returns the statistics of server and store.
func (s *Server) Snapshot() admin.Snapshot {
	snap := admin.Snapshot{
		Stats: cascade.CountedStats(s.opt.Store), Version: s.opt.Version, UptimeSeconds: time.Since(s.born).Seconds(),
		Connections: s.connections(), Commands: s.counters.commands.Load(), Polled: s.counters.polled.Load(), Dropped: s.counters.dropped.Load(),
		ZeroCopy: s.counters.zeroCopy.Load(),
		Held:     s.held(), InFlight: s.inFlight(), Shared: s.shared(),
	}
	snap.Losses.Merge(s.jobs.Losses())
	snap.Losses.Merge(s.counters.losses.Counts())
	if a := s.Addr(); a != nil {
		snap.TCP = a.String()
	}
	if a := s.AdminAddr(); a != nil {
		snap.Admin = a.String()
	}
	if s.opt.Node != nil {
		st := s.opt.Node.Stats()
		snap.Peers = &st
		snap.Losses.Add(residency.StepLookup, "unanswered", st.Unlocated)
	}
	return snap
}

func (s *Server) inFlight() admin.InFlight {
	b := s.poller.SendBuffers()
	f := admin.InFlight{
		Buffers: b.Bytes, Limit: b.Limit, Wide: b.Wide, Stalled: s.stalled.Used(),
		Arriving: s.arriving.Used(), Transit: s.transit.Used(), Strange: s.strangers.Len(),
	}
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		f.Bytes += c.sock.QueuedBytes()
	}
	return f
}

func (s *Server) shared() admin.Shared {
	used, limit := s.jobs.Budget.Usage()
	return admin.Shared{Descriptors: used.Descriptors, DescriptorsMost: limit.Descriptors, Address: used.Address, AddressMost: limit.Address}
}
