package server

const (
	// transitShare is the part of memory that values which arrive from others
	// than the rank's own user may take, and stalledShare the part that replies
	// which are not read may borrow without being hurried.
	transitShare = 2
	stalledShare = 4
)

// InFlight is what replies that clients have not read take, and values and
// commands that have not arrived as a whole.
type InFlight struct {
	Bytes    int64 `json:"bytes"`           // in send buffers, not read yet, overhead included
	Buffers  int64 `json:"buffers"`         // size of the wide send buffers
	Limit    int64 `json:"limit"`           // of Buffers
	Wide     int64 `json:"wide"`            // connections with a wide send buffer
	Stalled  int64 `json:"stalled"`         // bytes of values that replies borrow which are not read
	Arriving int64 `json:"arriving"`        // bytes of memory, of large commands that arrive
	Transit  int64 `json:"transit"`         // bytes of tiers, of values that arrive
	Strange  int   `json:"unauthenticated"` // connections that have not authenticated
}

func (s *Server) inFlight() InFlight {
	b := s.poller.SendBuffers()
	f := InFlight{
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
