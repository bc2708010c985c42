package members

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Both sides of a gossip stream prove that they know the job's secret before
// memberlist reads a byte of it: memberlist takes what a message announces, up
// to 20 MiB, into memory before it finds that it cannot decrypt it.
const (
	streamMagic   = "CASCADEG"
	streamVersion = 1
	streamPrefix  = 10 // magic and version: the same in every version
	helloSize     = streamPrefix + 32
	proofSize     = sha256.Size
)

// streamLabel is the first part of what the key of these proofs is derived for.
const streamLabel = "cascade gossip stream 1\x00"

// Roles are part of a proof, so that neither side's can be sent back to it.
const (
	roleOpener   = "opener"
	roleAccepter = "accepter"
)

// Errors of the proof. errStranger means that the other side speaks something
// else, errProof that it does not know the secret of the job.
var (
	errStranger = errors.New("members: not a gossip stream of cascade")
	errVersion  = errors.New("members: another version of gossip streams; run one version of cascaded in a job")
	errProof    = errors.New("members: it does not know the secret of the job; give all ranks the same secret and job name")
)

// streamKey proves knowledge of a job's secret on gossip streams.
type streamKey [sha256.Size]byte

func newStreamKey(secret []byte, job string) (k streamKey, err error) {
	b, err := hkdf.Key(sha256.New, secret, nil, streamLabel+job, len(k))
	copy(k[:], b)
	return k, err
}

// String keeps the key out of whatever prints it.
func (streamKey) String() string { return "(key)" }

// GoString does the same for %#v.
func (streamKey) GoString() string { return "(key)" }

type hello [helloSize]byte

func newHello() (h hello) {
	copy(h[:], streamMagic)
	binary.LittleEndian.PutUint16(h[len(streamMagic):], streamVersion)
	rand.Read(h[streamPrefix:]) // never fails
	return h
}

func readHello(r io.Reader) (h hello, err error) {
	if _, err := io.ReadFull(r, h[:streamPrefix]); err != nil {
		return h, fmt.Errorf("members: reading the hello of a gossip stream: %w", err)
	}
	if string(h[:len(streamMagic)]) != streamMagic {
		return h, errStranger
	}
	if v := binary.LittleEndian.Uint16(h[len(streamMagic):]); v != streamVersion {
		return h, fmt.Errorf("%w (it speaks version %d, this rank %d)", errVersion, v, streamVersion)
	}
	if _, err := io.ReadFull(r, h[streamPrefix:]); err != nil {
		return h, fmt.Errorf("members: reading the hello of a gossip stream: %w", err)
	}
	return h, nil
}

// proof is what a role sends for the two hellos of a stream.
func (k *streamKey) proof(role string, opener, accepter *hello) (p [proofSize]byte) {
	m := hmac.New(sha256.New, k[:])
	m.Write([]byte(role))
	m.Write([]byte{0})
	m.Write(opener[:])
	m.Write(accepter[:])
	m.Sum(p[:0])
	return p
}

// checkProof reads the other side's proof.
func checkProof(r io.Reader, want [proofSize]byte) error {
	var got [proofSize]byte
	if _, err := io.ReadFull(r, got[:]); err != nil {
		return fmt.Errorf("members: reading the proof of a gossip stream: %w", err)
	}
	if !hmac.Equal(got[:], want[:]) {
		return errProof
	}
	return nil
}

// open is the side that opened a stream. It sends nothing of the members before
// the other side has proved that it has the secret.
func (k *streamKey) open(rw io.ReadWriter) error {
	mine := newHello()
	if _, err := rw.Write(mine[:]); err != nil {
		return fmt.Errorf("members: opening a gossip stream: %w", err)
	}
	theirs, err := readHello(rw)
	if err != nil {
		return err
	}
	if err := checkProof(rw, k.proof(roleAccepter, &mine, &theirs)); err != nil {
		return err
	}
	p := k.proof(roleOpener, &mine, &theirs)
	if _, err := rw.Write(p[:]); err != nil {
		return fmt.Errorf("members: opening a gossip stream: %w", err)
	}
	return nil
}

// accept is the side at which a stream was opened. It reads 74 bytes at most.
func (k *streamKey) accept(rw io.ReadWriter) error {
	theirs, err := readHello(rw)
	if err != nil {
		return err
	}
	mine := newHello()
	p := k.proof(roleAccepter, &theirs, &mine)
	if _, err := rw.Write(append(mine[:], p[:]...)); err != nil {
		return fmt.Errorf("members: answering a gossip stream: %w", err)
	}
	return checkProof(rw, k.proof(roleOpener, &theirs, &mine))
}
