package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"

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
	c.value(reflect.ValueOf(s).Elem())
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
	c.value(reflect.ValueOf(s).Elem())
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

// number walks an integer of so many bytes.
func (c *codec) number(n uint64, size int) uint64 {
	var b [8]byte
	if c.reads {
		copy(b[:], c.take(uint64(size)))
		return le.Uint64(b[:])
	}
	le.PutUint64(b[:], n)
	c.p = append(c.p, b[:size]...)
	return n
}

// bytes walks a length and so many bytes, which are not copied.
func (c *codec) bytes(p []byte) []byte {
	n := c.number(uint64(len(p)), 4)
	if c.reads {
		return c.take(n)
	}
	c.p = append(c.p, p...)
	return p
}

// value walks v, a struct by its fields in their order.
func (c *codec) value(v reflect.Value) {
	switch size := int(v.Type().Size()); v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			c.value(v.Field(i))
		}
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(c.number(v.Uint(), size))
	case reflect.Int32:
		v.SetInt(int64(int32(c.number(uint64(v.Int()), size))))
	case reflect.Int64:
		v.SetInt(int64(c.number(uint64(v.Int()), size)))
	case reflect.Bool:
		is := uint64(0)
		if v.Bool() {
			is = 1
		}
		is = c.number(is, size)
		if v.SetBool(is == 1); is > 1 {
			c.fail("a bool is neither 0 nor 1")
		}
	case reflect.String:
		v.SetString(string(c.bytes([]byte(v.String()))))
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			c.list(v)
		} else if p := c.bytes(v.Bytes()); len(p) > 0 && c.reads {
			v.SetBytes(bytes.Clone(p))
		}
	default:
		c.fail("no layout for " + v.Type().String())
	}
}

// list walks a length and so many items.
func (c *codec) list(v reflect.Value) {
	n := c.number(uint64(v.Len()), 4)
	if c.reads {
		if n*least(v.Type().Elem()) > uint64(len(c.p)) {
			c.fail("a list ends too early")
		}
		if c.bad != "" || n == 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
	}
	for i := range v.Len() {
		c.value(v.Index(i))
	}
}

// least is how many bytes a value of a type has at least.
func least(t reflect.Type) (n uint64) {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			n += least(t.Field(i).Type)
		}
		return n
	case reflect.String, reflect.Slice:
		return 4
	}
	return uint64(t.Size())
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
