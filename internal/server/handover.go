package server

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/handover"
	"cascadekv/internal/netio"
	"cascadekv/internal/upgrade"
)

// HandOver has all connections rest between two commands, and calls become with
// all that another program needs to go on with them in this process. become
// returns only if it does not; then they go on here, and so they do when some do
// not come to rest until ctx ends. asked is the connection in whose command this
// is called, or 0. Errors: upgrade.ErrBusy, that of become.
func (s *Server) HandOver(ctx context.Context, asked uint64, become func(*handover.State) error) error {
	front := upgrade.Front{
		Poller: s.poller, Listeners: s.allListeners(), Ending: s.isEnding, HTTPBusy: s.http.Busy, RestJobs: s.jobs.Rest, ResumeJobs: s.jobs.Resume,
		Conns: func() (conns []upgrade.Conn) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for c := range s.conns {
				if c.id != asked {
					conns = append(conns, upgrade.Conn{ID: c.id, Sock: c.sock})
				}
			}
			return conns
		},
	}
	return front.Quiesce(ctx, func(began time.Time) error {
		st, err := s.state(asked)
		if err != nil {
			return err
		}
		st.Began = began.UnixNano()
		return become(st)
	})
}

// allListeners are those of clients and that of HTTP.
func (s *Server) allListeners() []*netio.Listener {
	if s.admin == nil {
		return s.listeners
	}
	return append(s.listeners[:len(s.listeners):len(s.listeners)], s.admin)
}

// state gathers what another program needs. Everything rests.
func (s *Server) state(asked uint64) (*handover.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &handover.State{PID: uint32(os.Getpid()), From: s.opt.Version, Asked: asked, LastConn: s.nextID, NextEvent: max(s.opt.Store.Events().Next(), cascade.Traffic(s.opt.Store).Next())}
	for _, g := range s.allListeners() {
		fd, err := g.Descriptor()
		if err != nil {
			return nil, err
		}
		kind := handover.TCP
		switch {
		case g == s.admin:
			kind = handover.Admin
		case g.Addr().Network() == "unix":
			kind = handover.Unix
		}
		st.Listeners = append(st.Listeners, handover.Listener{Kind: kind, FD: int32(fd)})
	}
	for c := range s.conns {
		st.Conns = append(st.Conns, c.state(st))
	}
	for _, h := range s.opt.Store.SharedIndex().EndHolds() { // what keeps them is dropped when the holds themselves are taken over
		st.Claims = append(st.Claims, handover.Claim{Offset: h.Offset, Size: h.Size, CRC: h.CRC})
	}
	s.opt.Store.Leases().Each(func(ns, key, owner string, until time.Time) {
		if id, ok := connOwner(owner); ok {
			st.Leases = append(st.Leases, handover.Lease{Conn: id, Namespace: ns, Key: key, Until: until.UnixNano()})
		}
	})
	return st, nil
}

// ownerOf is a connection as an owner of leases, and connOwner the inverse.
func ownerOf(id uint64) string { return "conn-" + strconv.FormatUint(id, 10) }

func connOwner(owner string) (id uint64, ok bool) {
	digits, ok := strings.CutPrefix(owner, "conn-")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 64)
	return id, err == nil
}

// state is what another program needs of a connection that rests. Its claims are
// added to those of st.
func (c *conn) state(st *handover.State) handover.Conn {
	c.checkProof()
	x := handover.Conn{
		ID: c.id, FD: int32(c.sock.FD()), Proto: uint8(c.wr.Proto()), DB: uint8(c.db), Name: c.name, Size: c.fixed.Size,
		Input: c.unread(), Holds: -1,
	}
	if c.holds != nil {
		fd, _ := c.holds.File()
		x.Holds = int32(fd)
	}
	for flag, is := range map[handover.Flags]bool{
		handover.Authed: c.authed, handover.MayBeFixed: c.fixed.Possible, handover.SeenFixed: c.fixed.Seen, handover.WaitsToHang: c.fixed.Waiting,
	} {
		if is {
			x.Flags |= flag
		}
	}
	for _, fd := range c.sock.Descriptors() {
		x.Descriptors = append(x.Descriptors, int32(fd))
	}
	c.held.Save(st, &x)
	if c.transfers != nil {
		c.transfers.Save(&x)
	}
	return x
}

// keepPins are pins that lay in no file: those that are still in memory.
func (c *conn) keepPins(x *handover.Conn) {
	ctx, cancel := c.Context()
	defer cancel()
	for _, p := range x.Pins {
		if p.Claim == handover.NoClaim {
			c.pin(ctx, p.Namespace, []string{p.Key})
		}
	}
}
