package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"cascadekv/internal/block"
)

// Version is that of the layout. A program reads no other one.
const Version = 3

const (
	magic      = "CASCHND1"
	headerSize = 24 // magic, version, CRC of the body, its length
)

var le = binary.LittleEndian

// ErrDamaged means that bytes are no state.
var ErrDamaged = errors.New("handover: damaged")

// ErrVersion means that another version of this program wrote the state.
var ErrVersion = errors.New("handover: written by a version that this one does not read")

// Encode returns the state as bytes.
func Encode(s *State) []byte {
	c := &codec{p: make([]byte, headerSize, 64<<10)}
	c.state(s)
	copy(c.p, magic)
	le.PutUint32(c.p[8:], Version)
	le.PutUint32(c.p[12:], block.CRC(c.p[headerSize:]))
	le.PutUint64(c.p[16:], uint64(len(c.p)-headerSize))
	return c.p
}

// Decode is the inverse of Encode. It keeps no part of p, and allocates no more
// than a small multiple of its length. Errors: ErrDamaged, ErrVersion.
func Decode(p []byte) (*State, error) {
	if len(p) < headerSize || string(p[:8]) != magic {
		return nil, fmt.Errorf("%w: it does not begin with %s", ErrDamaged, magic)
	}
	if v := le.Uint32(p[8:]); v != Version {
		return nil, fmt.Errorf("%w: %d, want %d", ErrVersion, v, Version)
	}
	body := p[headerSize:]
	if le.Uint64(p[16:]) != uint64(len(body)) || le.Uint32(p[12:]) != block.CRC(body) {
		return nil, fmt.Errorf("%w: length or checksum of %d bytes is wrong", ErrDamaged, len(body))
	}
	c := &codec{p: body, reads: true}
	s := &State{}
	c.state(s)
	if c.bad == "" && len(c.p) > 0 {
		c.fail("bytes are left over")
	}
	if c.bad == "" {
		c.check(s)
	}
	if c.bad != "" {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, c.bad)
	}
	return s, nil
}

// codec walks a state field by field, in either direction, so that both can not
// differ. When it writes, p grows; when it reads, p is what is left.
type codec struct {
	p     []byte
	reads bool
	bad   string // what is wrong; nothing is read any more
}

func (c *codec) fail(why string) {
	if c.bad == "" {
		c.bad = why
	}
	c.p = nil
}

// take returns the next n bytes, or nil.
func (c *codec) take(n uint64) []byte {
	if c.bad == "" && n > uint64(len(c.p)) {
		c.fail("it ends too early")
	}
	if c.bad != "" {
		return nil
	}
	p := c.p[:n]
	c.p = c.p[n:]
	return p
}

func (c *codec) u8(v *uint8) {
	if !c.reads {
		c.p = append(c.p, *v)
	} else if p := c.take(1); p != nil {
		*v = p[0]
	}
}

func (c *codec) u32(v *uint32) {
	if !c.reads {
		c.p = le.AppendUint32(c.p, *v)
	} else if p := c.take(4); p != nil {
		*v = le.Uint32(p)
	}
}

func (c *codec) u64(v *uint64) {
	if !c.reads {
		c.p = le.AppendUint64(c.p, *v)
	} else if p := c.take(8); p != nil {
		*v = le.Uint64(p)
	}
}

func (c *codec) i32(v *int32) {
	u := uint32(*v)
	c.u32(&u)
	*v = int32(u)
}

func (c *codec) i64(v *int64) {
	u := uint64(*v)
	c.u64(&u)
	*v = int64(u)
}

func (c *codec) flag(v *bool) {
	var u uint8
	if *v {
		u = 1
	}
	c.u8(&u)
	if *v = u == 1; u > 1 {
		c.fail("a bool is neither 0 nor 1")
	}
}

func (c *codec) bytes(v *[]byte) {
	n := uint32(len(*v))
	c.u32(&n)
	if !c.reads {
		c.p = append(c.p, *v...)
	} else if p := c.take(uint64(n)); len(p) > 0 {
		*v = append([]byte(nil), p...)
	}
}

func (c *codec) text(v *string) {
	p := []byte(*v)
	c.bytes(&p)
	*v = string(p)
}

// list walks a list whose items have at least so many bytes each.
func list[T any](c *codec, v *[]T, least int, each func(*T)) {
	n := uint32(len(*v))
	c.u32(&n)
	if c.reads {
		if uint64(n)*uint64(least) > uint64(len(c.p)) {
			c.fail("a list ends too early")
		}
		if c.bad != "" || n == 0 {
			return
		}
		*v = make([]T, n)
	}
	for i := range *v {
		each(&(*v)[i])
	}
}

func (c *codec) state(s *State) {
	c.u32(&s.PID)
	c.i64(&s.Began)
	c.text(&s.From)
	c.u64(&s.Asked)
	c.u64(&s.LastConn)
	c.u64(&s.NextEvent)
	list(c, &s.Listeners, 5, func(l *Listener) {
		c.u8((*uint8)(&l.Kind))
		c.i32(&l.FD)
	})
	list(c, &s.Claims, 21, func(x *Claim) {
		c.i64(&x.Offset)
		c.i64(&x.Size)
		c.u32(&x.CRC)
		c.flag(&x.Stage)
	})
	list(c, &s.Conns, 75, c.conn)
	list(c, &s.Leases, 24, func(l *Lease) {
		c.u64(&l.Conn)
		c.text(&l.Namespace)
		c.text(&l.Key)
		c.i64(&l.Until)
	})
	list(c, &s.Seeds, 4, c.text)
	c.i32(&s.Arena.FD)
	c.text(&s.Arena.Path)
}

func (c *codec) conn(x *Conn) {
	c.u64(&x.ID)
	c.i32(&x.FD)
	c.u8((*uint8)(&x.Flags))
	c.u8(&x.Proto)
	c.u8(&x.DB)
	c.text(&x.Name)
	c.i64(&x.Size)
	c.bytes(&x.Input)
	list(c, &x.Descriptors, 4, c.i32)
	c.i32(&x.Holds)
	c.i64(&x.LastHeld)
	list(c, &x.Views, 16, func(v *View) {
		c.i64(&v.Number)
		c.u32(&v.Claim)
		c.text(&v.Tier)
	})
	list(c, &x.Stages, 12, func(st *Stage) {
		c.i64(&st.Number)
		c.u32(&st.Claim)
	})
	list(c, &x.Pins, 12, func(p *Pin) {
		c.text(&p.Namespace)
		c.text(&p.Key)
		c.u32(&p.Claim)
	})
	c.i64(&x.LastRegion)
	list(c, &x.Regions, 24, func(r *Region) {
		c.i64(&r.Number)
		c.i32(&r.FD)
		c.i32(&r.Notify)
		c.i64(&r.Size)
	})
	list(c, &x.Jobs, 50, c.job)
}

func (c *codec) job(j *Job) {
	c.i64(&j.Number)
	c.bytes(&j.Status)
	c.flag(&j.Over)
	c.i64(&j.Region)
	c.u32(&j.Next)
	c.u8((*uint8)(&j.Flags))
	c.text(&j.Namespace)
	c.text(&j.Parent)
	c.i64(&j.Expires)
	list(c, &j.Keys, 4, c.text)
	c.u32(&j.ExtentsOfBlock)
	list(c, &j.Extents, 8, c.i64)
}

// check refuses what no program would have written.
func (c *codec) check(s *State) {
	fds := map[int32]bool{}
	own := func(fd int32) {
		if fd < 3 || fds[fd] {
			c.fail(fmt.Sprintf("descriptor %d is named twice, or is none", fd))
		}
		fds[fd] = true
	}
	claimed := make([]bool, len(s.Claims))
	claim := func(n uint32, stage bool) {
		if int64(n) >= int64(len(s.Claims)) || s.Claims[n].Stage != stage || claimed[n] {
			c.fail(fmt.Sprintf("claim %d is of another kind, named twice, or none", n))
			return
		}
		claimed[n] = true
	}
	for _, l := range s.Listeners {
		if l.Kind < Unix || l.Kind > Admin {
			c.fail("a listener is of no kind")
		}
		own(l.FD)
	}
	if s.Arena.FD != 0 {
		own(s.Arena.FD)
	}
	for _, x := range s.Claims {
		if x.Offset < 0 || x.Size < 0 || x.Offset > math.MaxInt64-x.Size || x.Size > block.MaxSize {
			c.fail("a claim is outside of any arena")
		}
	}
	for i := range s.Conns {
		c.checkConn(&s.Conns[i], own, claim)
	}
}

func (c *codec) checkConn(x *Conn, own func(int32), claim func(n uint32, stage bool)) {
	own(x.FD)
	for _, fd := range x.Descriptors {
		own(fd)
	}
	if x.Holds != -1 {
		own(x.Holds)
	}
	if x.Proto != 2 && x.Proto != 3 || x.Flags > knownFlags {
		c.fail("a connection speaks no version of RESP, or has unknown flags")
	}
	for _, v := range x.Views {
		claim(v.Claim, false)
	}
	for _, st := range x.Stages {
		claim(st.Claim, true)
	}
	for _, p := range x.Pins {
		if p.Claim != NoClaim {
			claim(p.Claim, false)
		}
	}
	for _, r := range x.Regions {
		own(r.FD)
		if r.Notify != -1 {
			own(r.Notify)
		}
	}
	for _, j := range x.Jobs {
		n := len(j.Keys)
		whole := n > 0 && len(j.Status) == n && int64(j.Next) <= int64(n) && int64(len(j.Extents)) == 2*int64(n)*int64(j.ExtentsOfBlock)
		if j.Flags > knownJobFlags || !j.Over && !whole {
			c.fail("a job is incomplete")
		}
	}
}
