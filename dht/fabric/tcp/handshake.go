package tcp

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"cascadekv/dht/fabric"
)

const (
	magic        = "CASCADEF"
	version      = 2
	prefixSize   = 10 // magic and version: the same in every version
	greetingSize = 128
	nonceSize    = 32
	codeSize     = sha256.Size
)

// purpose is what a stream is opened for.
type purpose byte

const (
	forCalls purpose = iota + 1
	forPayloads
)

// greeting is what each side sends first.
type greeting struct {
	version     uint16
	purpose     purpose
	authority   bool // has one to sign and verify credentials
	from, to    fabric.Rank
	placement   uint32
	incarnation uint64
	nonce       [nonceSize]byte
	job         string
}

func (g *greeting) encode() (b [greetingSize]byte) {
	copy(b[:], magic)
	binary.LittleEndian.PutUint16(b[8:], g.version)
	b[10] = byte(g.purpose)
	if g.authority {
		b[11] = hasAuthority
	}
	binary.LittleEndian.PutUint32(b[12:], uint32(g.from))
	binary.LittleEndian.PutUint32(b[16:], uint32(g.to))
	binary.LittleEndian.PutUint32(b[20:], g.placement)
	binary.LittleEndian.PutUint64(b[24:], g.incarnation)
	copy(b[32:64], g.nonce[:])
	b[64] = byte(len(g.job))
	copy(b[65:], g.job)
	return b
}

var (
	errStranger = errors.New("not a cascade fabric") // no greeting
	errGreeting = errors.New("broken greeting")
)

// decodeGreeting reads a greeting of our version.
func decodeGreeting(b *[greetingSize]byte) (greeting, error) {
	g := greeting{
		version:     binary.LittleEndian.Uint16(b[8:]),
		purpose:     purpose(b[10]),
		authority:   b[11] == hasAuthority,
		from:        fabric.Rank(binary.LittleEndian.Uint32(b[12:])),
		to:          fabric.Rank(binary.LittleEndian.Uint32(b[16:])),
		placement:   binary.LittleEndian.Uint32(b[20:]),
		incarnation: binary.LittleEndian.Uint64(b[24:]),
		nonce:       [nonceSize]byte(b[32:]),
	}
	n := int(b[64])
	if n > MaxJob || g.purpose < forCalls || g.purpose > forPayloads || b[11] > hasAuthority || len(bytes.Trim(b[65+n:], "\x00")) > 0 {
		return greeting{}, errGreeting
	}
	g.job = string(b[65 : 65+n])
	return g, nil
}

// readGreeting reads a greeting as bytes and decoded. Of another version only
// g.version is known, and nothing but the prefix was read.
func readGreeting(r io.Reader) (raw [greetingSize]byte, g greeting, err error) {
	if _, err := io.ReadFull(r, raw[:prefixSize]); err != nil {
		return raw, g, fmt.Errorf("reading the greeting: %w", err)
	}
	if string(raw[:8]) != magic {
		return raw, g, errStranger
	}
	if g.version = binary.LittleEndian.Uint16(raw[8:]); g.version != version {
		return raw, g, nil
	}
	if _, err := io.ReadFull(r, raw[prefixSize:]); err != nil {
		return raw, g, fmt.Errorf("reading the greeting: %w", err)
	}
	g, err = decodeGreeting(&raw)
	return raw, g, err
}

// identity is one side of handshakes: who we are and what we can prove.
type identity struct {
	self        fabric.Rank
	incarnation uint64
	placement   uint32
	job         string
	key         [sha256.Size]byte // made of the secret
	authority   Authority         // or nil
	required    bool              // of the other side too
}

// newIdentity derives the key, so that the secret itself is used for nothing
// else.
func newIdentity(o *Options) *identity {
	m := hmac.New(sha256.New, o.Secret)
	m.Write([]byte("cascade fabric key 1"))
	id := &identity{
		self: o.Self, incarnation: o.Incarnation, placement: o.Placement, job: o.Job,
		authority: o.Authority, required: o.RequireAuthority,
	}
	m.Sum(id.key[:0])
	return id
}

// String leaves the key out of whatever prints an identity.
func (id *identity) String() string { return fmt.Sprintf("%v of job %q", id.self, id.job) }

// GoString does the same for %#v.
func (id *identity) GoString() string { return id.String() }

func (id *identity) greeting(p purpose, to fabric.Rank) greeting {
	g := greeting{
		version: version, purpose: p, from: id.self, to: to,
		placement: id.placement, incarnation: id.incarnation, job: id.job, authority: id.authority != nil,
	}
	rand.Read(g.nonce[:]) // never fails
	return g
}

// Roles are part of the code, so that neither side's can be sent back to it.
const (
	roleOpener   = "opener"
	roleAccepter = "accepter"
)

// code proves that a role knows the key, for these two greetings only.
func (id *identity) code(role string, opener, accepter *[greetingSize]byte) (c [codeSize]byte) {
	m := hmac.New(sha256.New, id.key[:])
	m.Write([]byte(role))
	m.Write([]byte{0})
	m.Write(opener[:])
	m.Write(accepter[:])
	m.Sum(c[:0])
	return c
}

// open is the handshake of the rank that opened a stream to the peer to,
// expected to be the given incarnation. Errors: ErrRefused, ErrUnreachable.
func (id *identity) open(ctx context.Context, rw io.ReadWriter, p purpose, to fabric.Rank, incarnation uint64) error {
	mine := id.greeting(p, to)
	rawMine := mine.encode()
	if _, err := rw.Write(rawMine[:]); err != nil {
		return fmt.Errorf("greeting: %w: %w", fabric.ErrUnreachable, err)
	}
	rawTheirs, theirs, err := readGreeting(rw)
	if err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)
	}
	if err := id.judge(theirs); err != nil {
		return err
	}
	var code [codeSize]byte
	if _, err := io.ReadFull(rw, code[:]); err != nil {
		return fmt.Errorf("reading the proof: %w: %w", fabric.ErrUnreachable, err)
	}
	want := id.code(roleAccepter, &rawMine, &rawTheirs)
	if !hmac.Equal(code[:], want[:]) {
		return fmt.Errorf("%w: it does not know the secret of job %q; give all ranks the same", fabric.ErrRefused, id.job)
	}
	if theirs.from != to || theirs.to != id.self || theirs.purpose != p || theirs.incarnation != incarnation {
		return fmt.Errorf("%w: its address belongs to %v, incarnation %d now", fabric.ErrUnreachable, theirs.from, theirs.incarnation)
	}
	proof := id.code(roleOpener, &rawMine, &rawTheirs)
	if _, err := rw.Write(proof[:]); err != nil {
		return fmt.Errorf("sending the proof: %w: %w", fabric.ErrUnreachable, err)
	}
	if !mine.authority || !theirs.authority {
		return nil
	}
	if err := id.sendCredential(ctx, rw, proof[:]); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrUnreachable, err)
	}
	return id.readCredential(ctx, rw, want[:])
}

// steps are called while a handshake goes on, and end it with an error. Each
// may be nil.
type steps struct {
	greeted func() error // the opener has sent a greeting
	proved  func() error // it has proved that it has the secret
}

// take calls a step, if it is not nil.
func take(step func() error) error {
	if step == nil {
		return nil
	}
	return step()
}

// accept is the handshake of the rank at which a stream was opened, and
// returns the opener's greeting, which is then proved to be true.
func (id *identity) accept(ctx context.Context, rw io.ReadWriter, on steps) (greeting, error) {
	rawTheirs, theirs, err := readGreeting(rw)
	if err == nil {
		err = take(on.greeted)
	}
	if err != nil {
		return greeting{}, err
	}
	mine := id.greeting(max(theirs.purpose, forCalls), theirs.from)
	rawMine := mine.encode()
	code := id.code(roleAccepter, &rawTheirs, &rawMine)
	// It is sent even to those who do not fit: they compare and know why.
	if _, err := rw.Write(append(rawMine[:], code[:]...)); err != nil {
		return greeting{}, fmt.Errorf("greeting: %w", err)
	}
	if err := id.judge(theirs); err != nil {
		return greeting{}, err
	}
	if theirs.to != id.self {
		return greeting{}, fmt.Errorf("%w: %v looks for %v here", fabric.ErrRefused, theirs.from, theirs.to)
	}
	if _, err := io.ReadFull(rw, code[:]); err != nil {
		return greeting{}, fmt.Errorf("reading the proof: %w", err)
	}
	want := id.code(roleOpener, &rawTheirs, &rawMine)
	if !hmac.Equal(code[:], want[:]) {
		return greeting{}, fmt.Errorf("%w: who opened a stream as %v does not know the secret of job %q", fabric.ErrRefused, theirs.from, id.job)
	}
	if err := take(on.proved); err != nil {
		return greeting{}, err
	}
	if !mine.authority || !theirs.authority {
		return theirs, nil
	}
	proof := id.code(roleAccepter, &rawTheirs, &rawMine)
	if err := id.readCredential(ctx, rw, want[:]); err != nil {
		return greeting{}, fmt.Errorf("%v: %w", theirs.from, err)
	}
	return theirs, id.sendCredential(ctx, rw, proof[:])
}

// judge compares what both sides must agree on. Errors: ErrRefused.
func (id *identity) judge(g greeting) error {
	switch {
	case g.version != version:
		return fmt.Errorf("%w: it speaks version %d of the protocol, we %d; run one version of cascaded in a job", fabric.ErrRefused, g.version, version)
	case g.job != id.job:
		return fmt.Errorf("%w: it belongs to job %q, we to %q", fabric.ErrRefused, g.job, id.job)
	case id.required && !g.authority:
		return fmt.Errorf("%w: no munged answers where %v runs; start one there, or set peers.munge to \"auto\"", fabric.ErrRefused, g.from)
	case g.placement != id.placement:
		return fmt.Errorf("%w: it places keys by version %d, we by %d; run one version of cascaded in a job", fabric.ErrRefused, g.placement, id.placement)
	}
	return nil
}
