package server

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/handover"
)

// HandOver has all connections rest between two commands, and calls become with
// all that another program needs to go on with them in this process. become
// returns only if it does not; then they go on here, and so they do when some do
// not come to rest until ctx ends. asked is the connection in whose command this
// is called. Errors: ErrBusy, that of become.
func (s *Server) HandOver(ctx context.Context, asked uint64, become func(*handover.State) error) error {
	s.mu.Lock()
	var asking *conn
	for c := range s.conns {
		if c.id == asked {
			asking = c
		}
	}
	s.mu.Unlock()
	return s.still(ctx, asking, func(began time.Time) error {
		st, err := s.state(asking)
		if err != nil {
			return err
		}
		st.Began = began.UnixNano()
		return become(st)
	})
}

// state gathers what another program needs. Everything rests.
func (s *Server) state(asked *conn) (*handover.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &handover.State{PID: uint32(os.Getpid()), From: s.opt.Version, LastConn: s.nextID, NextEvent: s.opt.Store.NextEvent()}
	if asked != nil {
		st.Asked = asked.id
	}
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
	for _, h := range s.opt.Store.EndHolds() { // what keeps them is dropped when the holds themselves are taken over
		st.Claims = append(st.Claims, handover.Claim{Offset: h.Offset, Size: h.Size, CRC: h.CRC})
	}
	s.opt.Store.EachLease(func(ns, key, owner string, until time.Time) {
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
		ID: c.id, FD: int32(c.sock.FD()), Proto: uint8(c.wr.Proto()), DB: uint8(c.db), Name: c.name, Size: c.fixed.size,
		Input: c.unread(), LastHeld: c.held.last, Holds: -1,
	}
	if c.holds != nil {
		fd, _ := c.holds.File()
		x.Holds = int32(fd)
	}
	for flag, is := range map[handover.Flags]bool{
		handover.Authed: c.authed, handover.MayBeFixed: c.fixed.possible, handover.SeenFixed: c.fixed.seen, handover.WaitsToHang: c.fixed.waiting,
	} {
		if is {
			x.Flags |= flag
		}
	}
	for _, fd := range c.sock.Descriptors() {
		x.Descriptors = append(x.Descriptors, int32(fd))
	}
	c.heldState(st, &x)
	if c.transfers != nil {
		c.transfers.Save(&x)
	}
	return x
}

// heldState adds views, stages and pins.
func (c *conn) heldState(st *handover.State, x *handover.Conn) {
	claim := func(offset, size int64, crc uint32, stage bool) uint32 {
		st.Claims = append(st.Claims, handover.Claim{Offset: offset, Size: size, CRC: crc, Stage: stage})
		return uint32(len(st.Claims) - 1)
	}
	for n, v := range c.held.views {
		_, offset, _ := v.File()
		x.Views = append(x.Views, handover.View{Number: n, Claim: claim(offset, v.Size(), v.CRC(), false), Tier: v.Tier()})
	}
	for n, sg := range c.held.stages {
		_, offset, _ := sg.File()
		x.Stages = append(x.Stages, handover.Stage{Number: n, Claim: claim(offset, int64(len(sg.Bytes())), 0, true)})
	}
	for k, v := range c.held.pins {
		p := handover.Pin{Namespace: k.ns, Key: k.key, Claim: handover.NoClaim}
		if _, offset, ok := v.File(); ok {
			p.Claim = claim(offset, v.Size(), v.CRC(), false)
		}
		x.Pins = append(x.Pins, p)
	}
}

// keepPins are pins that lay in no file: those that are still in memory.
func (c *conn) keepPins(x *handover.Conn) {
	ctx, cancel := c.context()
	defer cancel()
	for _, p := range x.Pins {
		if p.Claim == handover.NoClaim {
			c.pin(ctx, p.Namespace, []string{p.Key})
		}
	}
}

// keepHeld gives the connection its views, stages and pins; false when one of
// them could not be kept.
func (c *conn) keepHeld(x *handover.Conn) bool {
	store, h := c.srv.opt.Store, &c.held
	view := func(n uint32, tier string) *cascade.View {
		v := store.ClaimedView(int(n), tier)
		if v != nil {
			h.budget.used.Add(heldSize(v.Size()))
		}
		return v
	}
	h.last = x.LastHeld
	whole := true
	for _, v := range x.Views {
		if held := view(v.Claim, v.Tier); held != nil {
			h.putView(v.Number, held)
		} else {
			whole = false
		}
	}
	for _, p := range x.Pins {
		if p.Claim == handover.NoClaim {
			continue
		}
		if held := view(p.Claim, ""); held != nil {
			h.putPin(pinned{p.Namespace, p.Key}, held)
		} else {
			whole = false
		}
	}
	for _, sg := range x.Stages {
		if held := store.ClaimedStage(int(sg.Claim)); held != nil {
			h.budget.used.Add(heldSize(int64(len(held.Bytes()))))
			h.putStage(sg.Number, held)
		} else {
			whole = false
		}
	}
	return whole
}
