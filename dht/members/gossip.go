package members

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
)

// keyLabel is the first part of what the gossip key is derived for, so that it
// is no other part's key.
const keyLabel = "cascade gossip 1\x00"

// key derives the key of a job's gossip from its secret, and label the mark
// that its packets bear.
func key(secret []byte, job string) ([]byte, error) {
	return hkdf.Key(sha256.New, secret, nil, keyLabel+job, 32)
}

func label(job string) string { return "cascade/" + job }

// Reasons to refuse a member, beside errMeta.
var (
	errPlacement = errors.New("members: it places keys by another rule; run one version on all ranks")
	errName      = errors.New("members: its name is not that of its rank and incarnation")
)

// config is memberlist's, from the options. Its transport is left to Start.
func (m *Members) config(ctx context.Context) (*memberlist.Config, error) {
	secret, err := key(m.opt.Secret, m.opt.Job)
	if err != nil {
		return nil, fmt.Errorf("%w: no key: %w", ErrOptions, err)
	}
	bind, err := endpoint(ctx, m.opt.Bind)
	if err != nil {
		return nil, fmt.Errorf("%w: bind address: %w", ErrOptions, err)
	}
	c := memberlist.DefaultLANConfig()
	c.Name = m.self.name()
	c.Label, c.SecretKey = label(m.opt.Job), secret
	c.BindAddr, c.BindPort = bind.Addr().String(), int(bind.Port())
	c.AdvertisePort = c.BindPort
	if m.opt.Advertise != "" {
		public, err := endpoint(ctx, m.opt.Advertise)
		if err != nil {
			return nil, fmt.Errorf("%w: advertised address: %w", ErrOptions, err)
		}
		c.AdvertiseAddr = public.Addr().String()
		if public.Port() != 0 {
			c.AdvertisePort = int(public.Port())
		}
	}
	t := m.opt.Timers
	c.ProbeInterval, c.ProbeTimeout = t.Probe, t.ProbeTimeout
	c.GossipInterval, c.PushPullInterval, c.TCPTimeout = t.Gossip, t.PushPull, t.Dial
	c.Logger = log.New(m.lines, "", 0)
	hooks := hooks{m}
	c.Delegate, c.Events, c.Alive, c.Merge = hooks, hooks, hooks, hooks
	return c, nil
}

// endpoint resolves host:port; no host is any address.
func endpoint(ctx context.Context, text string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: %w; give host:port", text, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: port %q is not a number up to 65535", text, port)
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(number)), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: %w", text, err)
	}
	// A name with several addresses is known by its first of version 4.
	best := addrs[0].Unmap()
	for _, a := range addrs {
		if a.Unmap().Is4() {
			best = a.Unmap()
			break
		}
	}
	return netip.AddrPortFrom(best, uint16(number)), nil
}

// hooks is what memberlist calls, under its lock: nothing here blocks or calls
// memberlist.
type hooks struct{ m *Members }

// NodeMeta is what this rank publishes of itself.
func (h hooks) NodeMeta(int) []byte {
	self := h.m.self
	self.leaving = h.m.leaving.Load()
	b, err := self.encode()
	if err != nil {
		return nil // Start has encoded the same
	}
	return b
}

// NotifyMsg, GetBroadcasts, LocalState and MergeRemoteState carry user data,
// of which there is none.
func (hooks) NotifyMsg([]byte) {}

// GetBroadcasts has nothing to send.
func (hooks) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState has nothing to send.
func (hooks) LocalState(bool) []byte { return nil }

// MergeRemoteState expects nothing.
func (hooks) MergeRemoteState([]byte, bool) {}

// read decodes a member, or returns why it is refused.
func (h hooks) read(n *memberlist.Node) (claim, error) {
	m, err := decodeMeta(n.Meta)
	switch {
	case err != nil:
		return claim{}, err
	case m.name() != n.Name:
		return claim{}, fmt.Errorf("%w (it is %q and describes %s)", errName, n.Name, m.name())
	case m.placement != h.m.opt.Placement:
		return claim{}, fmt.Errorf("%w (it has placement version %d, this rank %d)", errPlacement, m.placement, h.m.opt.Placement)
	}
	return claim{m, n.Address()}, nil
}

// NotifyAlive refuses members that this rank can not work with.
func (h hooks) NotifyAlive(n *memberlist.Node) error {
	_, err := h.read(n)
	if err != nil {
		h.m.refuse(n.Address(), err)
	}
	return err
}

// NotifyMerge refuses to join ranks that this one can not work with.
func (h hooks) NotifyMerge(peers []*memberlist.Node) error {
	for _, n := range peers {
		if n.State != memberlist.StateAlive && n.State != memberlist.StateSuspect {
			continue
		}
		if _, err := h.read(n); err != nil {
			h.m.refuse(n.Address(), err)
			return fmt.Errorf("member %s at %s: %w", n.Name, n.Address(), err)
		}
	}
	return nil
}

// NotifyJoin takes a member that lives.
func (h hooks) NotifyJoin(n *memberlist.Node) {
	if c, err := h.read(n); err == nil && n.Name != h.m.self.name() {
		h.m.apply(func(v *view) []Event { return v.appear(c) })
	}
}

// NotifyUpdate handles a member that published something new of itself.
func (h hooks) NotifyUpdate(n *memberlist.Node) { h.NotifyJoin(n) }

// NotifyLeave takes the verdict that a member is gone.
func (h hooks) NotifyLeave(n *memberlist.Node) {
	if c, err := h.read(n); err == nil {
		h.m.apply(func(v *view) []Event { return v.vanish(c) })
	}
}

// repeatAfter is when what this rank has logged of others may be logged again:
// gossip repeats itself.
const (
	repeatAfter = 5 * time.Minute
	repeatKeys  = 1024
)

// first reports whether text was not logged lately.
func (m *Members) first(text string) bool {
	_, ok := m.refused.Allow(text)
	return ok
}

func (m *Members) refuse(addr string, why error) {
	if m.first(addr + ": " + why.Error()) {
		m.log.Warn("member refused", "gossip", addr, "why", why)
	}
}
