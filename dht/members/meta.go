package members

import (
	"bytes"
	"errors"
	"fmt"
	"math"
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
var errMeta = errors.New("members: what it tells of itself is not understood; run one version on all ranks")

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
	err := errors.Join(
		e.EncodeArrayLen(8),
		e.EncodeUint(metaVersion),
		e.EncodeUint(uint64(m.rank)),
		e.EncodeUint(m.incarnation),
		e.EncodeUint(uint64(m.nonce)),
		e.EncodeUint(uint64(m.placement)),
		e.EncodeBool(m.leaving),
		e.EncodeString(m.addr),
		e.EncodeString(m.host),
	)
	return b.Bytes(), err
}

// decodeMeta understands exactly what encode writes. Errors: errMeta.
func decodeMeta(b []byte) (meta, error) {
	if len(b) > maxMeta {
		return meta{}, fmt.Errorf("%w (%d bytes)", errMeta, len(b))
	}
	r := metaReader{d: msgpack.NewDecoder(bytes.NewReader(b))}
	if n, err := r.d.DecodeArrayLen(); err != nil || n != 8 {
		return meta{}, fmt.Errorf("%w (%d fields)", errMeta, n)
	}
	if v := r.number(math.MaxUint8); v != metaVersion {
		return meta{}, fmt.Errorf("%w (version %d, this rank has %d)", errMeta, v, metaVersion)
	}
	m := meta{
		rank:        fabric.Rank(r.number(maxRank - 1)),
		incarnation: r.number(math.MaxUint64),
		nonce:       uint32(r.number(math.MaxUint32)),
		placement:   uint32(r.number(math.MaxUint32)),
		leaving:     r.truth(),
		addr:        r.text(),
		host:        r.text(),
	}
	if r.err != nil {
		return meta{}, fmt.Errorf("%w (%v)", errMeta, r.err)
	}
	// One value has one form, and nothing follows it.
	if again, err := m.encode(); err != nil || !bytes.Equal(again, b) {
		return meta{}, fmt.Errorf("%w (not in its only form)", errMeta)
	}
	return m, nil
}

// metaReader reads fields until the first error.
type metaReader struct {
	d   *msgpack.Decoder
	err error
}

func (r *metaReader) number(most uint64) uint64 {
	if r.err != nil {
		return 0
	}
	var v uint64
	if v, r.err = r.d.DecodeUint64(); r.err == nil && v > most {
		r.err = fmt.Errorf("number %d above %d", v, most)
	}
	return v
}

func (r *metaReader) truth() (v bool) {
	if r.err == nil {
		v, r.err = r.d.DecodeBool()
	}
	return v
}

func (r *metaReader) text() (v string) {
	if r.err == nil {
		v, r.err = r.d.DecodeString()
	}
	return v
}

// clean reports whether s can be logged and printed as it is.
func clean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) })
}
