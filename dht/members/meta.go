package members

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"cascadekv/dht/fabric"

	"github.com/vmihailenco/msgpack/v5"
)

// metaVersion is the first field of what a rank publishes of itself.
const metaVersion = 1

// Bounds of what a rank publishes of itself. All of it stays below the 512 bytes
// that gossip carries.
const (
	maxMeta = 512
	maxRank = 1 << 16
	maxAddr = 160 // bytes
	maxHost = 255 // bytes
)

// errMeta is why a member is not understood.
var errMeta = errors.New("members: its description of itself is not understood; run one version on all ranks")

// meta is what a rank publishes of itself in gossip.
type meta struct {
	rank        fabric.Rank
	incarnation uint64
	nonce       uint32 // distinguishes two processes that claim the same life
	placement   uint32
	leaving     bool
	addr, host  string
}

// name is the member's name in gossip, never used twice.
func (m meta) name() string {
	return fmt.Sprintf("%d.%d.%08x", uint32(m.rank), m.incarnation, m.nonce)
}

// encode returns the bytes of docs/protocol.md, "Membership".
func (m meta) encode() ([]byte, error) {
	if m.rank >= maxRank || len(m.addr) > maxAddr || len(m.host) > maxHost || !clean(m.addr) || !clean(m.host) {
		return nil, fmt.Errorf("members: %v, address %q, host %q: give a rank below %d and printable names of at most %d and %d bytes",
			m.rank, m.addr, m.host, maxRank, maxAddr, maxHost)
	}
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseArrayEncodedStructs(true)
	e.UseCompactInts(true)
	err := e.Encode(&metaArray{
		Version: metaVersion, Rank: uint32(m.rank), Incarnation: m.incarnation, Nonce: m.nonce, Placement: m.placement,
		Leaving: m.leaving, Addr: m.addr, Host: m.host,
	})
	return b.Bytes(), err
}

// metaArray is a meta as it travels: an array of its fields.
type metaArray struct {
	Version     uint8
	Rank        uint32
	Incarnation uint64
	Nonce       uint32
	Placement   uint32
	Leaving     bool
	Addr, Host  string
}

// decodeMeta understands exactly what encode writes. Errors: errMeta.
func decodeMeta(b []byte) (meta, error) {
	if len(b) > maxMeta {
		return meta{}, fmt.Errorf("%w (%d bytes)", errMeta, len(b))
	}
	var f metaArray
	// A decoder of its own: a pooled one keeps the memory that a length asked for.
	if err := msgpack.NewDecoder(bytes.NewReader(b)).Decode(&f); err != nil {
		return meta{}, fmt.Errorf("%w (%v)", errMeta, err)
	}
	if f.Version != metaVersion {
		return meta{}, fmt.Errorf("%w (version %d, this rank has %d)", errMeta, f.Version, metaVersion)
	}
	m := meta{
		rank: fabric.Rank(f.Rank), incarnation: f.Incarnation, nonce: f.Nonce, placement: f.Placement,
		leaving: f.Leaving, addr: f.Addr, host: f.Host,
	}
	// One value has one form, and nothing follows it.
	if again, err := m.encode(); err != nil || !bytes.Equal(again, b) {
		return meta{}, fmt.Errorf("%w (not in its only form)", errMeta)
	}
	return m, nil
}

// clean reports whether s can be logged and printed as it is.
func clean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) })
}
