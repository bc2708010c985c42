package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admission"
	"cascadekv/internal/fault"
	"cascadekv/internal/handover"
	"cascadekv/internal/lmcache"
	"cascadekv/internal/netio"
	"cascadekv/internal/transfer"
)

// inherit opens the listeners that an earlier program of this process left, and
// closes those of kinds that this server is not to have. What it left none of is
// for listen.
func (s *Server) inherit() error {
	for _, l := range s.opt.Inherited.Listeners {
		f := os.NewFile(uintptr(l.FD), "listener")
		nl, err := net.FileListener(f) // of a copy
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("server: listener that was handed over: %w", err)
		}
		if u, ok := nl.(*net.UnixListener); ok {
			nl = netio.AdoptUnix(u, s.unixOptions(""))
		}
		if l.Kind == handover.Unix && s.opt.Socket == "" || l.Kind == handover.TCP && s.opt.Listen == "" || l.Kind == handover.Admin && s.opt.Admin == "" {
			_ = nl.Close()
			continue
		}
		g := s.poller.Listen(nl)
		if l.Kind == handover.Admin {
			s.admin = g
			continue
		}
		s.listeners = append(s.listeners, g)
	}
	return nil
}

// resume goes on with the connections that an earlier program left.
func (s *Server) resume() {
	st := s.opt.Inherited
	if st == nil {
		return
	}
	s.mu.Lock()
	s.nextID = max(s.nextID, st.LastConn)
	s.mu.Unlock()
	var there []*conn
	for i := range st.Conns {
		x := &st.Conns[i]
		c, err := s.takeOver(x)
		if err != nil {
			s.log.Error("a connection is not taken over: it is closed", "conn", x.ID, "err", err)
			continue
		}
		c.keepPins(x)
		there = append(there, c)
	}
	s.opt.Store.Claims().Drop()
	now := time.Now()
	for _, l := range st.Leases {
		s.opt.Store.Leases().Renew(l.Namespace, l.Key, ownerOf(l.Conn), time.Unix(0, l.Until).Sub(now))
	}
	paused := now.Sub(time.Unix(0, st.Began))
	s.log.Info("taken over", "from", st.From, "connections", len(there), "clients_waited", paused.Round(time.Millisecond).String())
	for _, c := range there {
		go func() {
			defer fault.Guard()()
			defer s.wg.Done()
			if c.id == st.Asked {
				c.upgraded(len(there), paused)
			}
			c.serve()
			s.leave(c)
		}()
	}
	s.opt.Inherited = nil
}

// takeOver makes the connection that a state describes. On error its descriptors
// are closed.
func (s *Server) takeOver(x *handover.Conn) (*conn, error) {
	local, uid, err := admission.SocketPeer(int(x.FD))
	var w *netio.Conn
	if err == nil {
		w, err = s.poller.AdoptConn(int(x.FD), local)
	} else {
		_ = unix.Close(int(x.FD))
	}
	if err != nil {
		x.CloseDescriptors()
		return nil, err
	}
	c := connOf(s, w, x.ID, !local)
	c.uid, c.source, c.name = uid, admission.Source(uid, w.IP()), x.Name
	c.setOwn(local && uid == os.Geteuid())
	if x.Flags&handover.Authed != 0 {
		c.letIn(s.secret.Load()) // the program before this one has found it to be the same
	}
	c.wr.SetProto(int(x.Proto))
	c.selectDB(int(x.DB) % databases)
	c.fixed = lmcache.Client{
		Possible: !local && x.Flags&handover.MayBeFixed != 0, Seen: x.Flags&handover.SeenFixed != 0,
		Waiting: x.Flags&handover.WaitsToHang != 0, Size: x.Size,
	}
	if c.fixed.Waiting {
		w.Patience = missClose
	}
	w.SetPushback(x.Input)
	for _, fd := range x.Descriptors {
		w.KeepDescriptor(int(fd))
	}
	failed := errors.Join(c.keepRegions(x), c.keepHolds(x))
	if !c.held.Restore(s.opt.Store.Claims(), x) {
		failed = errors.Join(failed, errNotKept)
	}
	if failed != nil {
		c.endIndex()
		c.endTransfers()
		c.held.DropAll()
		w.Close()
		return nil, failed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	return c, nil
}

// keepHolds goes on with what the client holds by itself.
func (c *conn) keepHolds(x *handover.Conn) (err error) {
	if x.Holds >= 0 {
		if c.holds, err = c.srv.opt.Store.SharedIndex().TakeHolds(int(x.Holds)); err == nil {
			c.srv.jobs.Budget.Force(transfer.OneFile)
		}
	}
	return err
}

var errNotKept = errors.New("something else lies in the arena where it reads or writes")

// keepRegions goes on with regions and jobs.
func (c *conn) keepRegions(x *handover.Conn) error {
	if x.LastRegion == 0 {
		return nil
	}
	c.transfers = c.srv.jobs.NewClient()
	return c.transfers.Restore(x)
}
