package dht

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"cascadekv/dht/directory"
)

// A message is two bytes, version and kind, and one msgpack value: see
// docs/protocol.md, "Between ranks: messages".

const messageVersion = 2

type kind byte

const (
	kindAnnounce   kind = 1 + iota // statements for a home
	kindLocate                     // where keys lie
	kindDelete                     // a name is deleted
	kindDrop                       // copies that are out of date, to their owner
	kindTouch                      // blocks that were used elsewhere
	kindWhere                      // an owner's newest statement about a name
	kindInvalidate                 // a copy that is not where its statement says
	kindClear                      // a namespace is emptied
	kindStatus                     // a rank's description of itself
	kindResync                     // a home that may have forgotten asks for statements
	kindExpire                     // when a name ends, to an owner
	kindPing                       // whether a suspect answers
	kindEntrust                    // names for bytes that an owner keeps
	kindNames                      // which names an owner has for some bytes
	kindGive                       // names for bytes that an owner keeps, and the speaker gives up
	kindCleared                    // a namespace was emptied a while ago
)

// errBadMessage marks what no rank of this version sends.
var errBadMessage = errors.New("dht: bad message: all ranks of a job must run one version of cascaded")

// record is what a message carries that is more than one value: pointers to its
// fields, in order.
type record interface{ fields() []any }

// What asks about one name, or about the names of a request.
type keysMessage struct {
	Namespace string
	Keys      []string
}

// stampMessage is a name and a time: the put stamp up to which it is
// buried, or when it is to expire, in Unix nanoseconds, 0 for never.
type stampMessage struct {
	Namespace, Key string
	Stamp          uint64
}

type clearMessage struct {
	Namespace string
	All       bool
}

// clearedMessage is a namespace, or all, of which puts stamped below Before are gone.
type clearedMessage struct {
	Namespace string
	All       bool
	Before    uint64
}

type staleMessage struct {
	Namespace, Key string
	Before         uint64
}

type (
	statements []directory.Statement
	stales     []staleMessage

	// copiesMessage answers kindLocate: for each key its copies. Names come
	// without namespace and key, which the asker has.
	copiesMessage []statements
)

func (m *keysMessage) fields() []any    { return []any{&m.Namespace, &m.Keys} }
func (m *stampMessage) fields() []any   { return []any{&m.Namespace, &m.Key, &m.Stamp} }
func (m *clearMessage) fields() []any   { return []any{&m.Namespace, &m.All} }
func (m *clearedMessage) fields() []any { return []any{&m.Namespace, &m.All, &m.Before} }
func (m *staleMessage) fields() []any   { return []any{&m.Namespace, &m.Key, &m.Before} }

// writer writes until the first error.
type writer struct {
	enc *msgpack.Encoder
	err error
}

func (w *writer) do(err error) {
	if w.err == nil {
		w.err = err
	}
}

// value writes what v points to: a record, a list, a statement or a plain value.
func (w *writer) value(v any) {
	switch v := v.(type) {
	case *string:
		w.do(w.enc.EncodeString(*v))
	case *uint64:
		w.do(w.enc.EncodeUint(*v))
	case *bool:
		w.do(w.enc.EncodeBool(*v))
	case *directory.Statement:
		w.do(v.EncodeMsgpack(w.enc))
	case *[]string:
		writeList(w, *v)
	case *statements:
		writeList(w, *v)
	case *stales:
		writeList(w, *v)
	case *copiesMessage:
		writeList(w, *v)
	case record:
		fields := v.fields()
		w.do(w.enc.EncodeArrayLen(len(fields)))
		for _, f := range fields {
			w.value(f)
		}
	default:
		w.do(fmt.Errorf("no form for a %T", v))
	}
}

func writeList[T any](w *writer, list []T) {
	w.do(w.enc.EncodeArrayLen(len(list)))
	for i := range list {
		w.value(&list[i])
	}
}

// reader reads until the first error; from then on all is zero.
type reader struct {
	rest *bytes.Reader
	dec  *msgpack.Decoder
	err  error
}

// array reads the head of an array whose elements take at least so many bytes
// each. What is allocated for them is bounded by the bytes that are there.
func (r *reader) array(least int) int {
	if r.err != nil {
		return 0
	}
	n, err := r.dec.DecodeArrayLen()
	if r.err = err; err == nil && n > r.rest.Len()/least {
		r.err = fmt.Errorf("%d elements in %d bytes", n, r.rest.Len())
	}
	if r.err != nil {
		return 0
	}
	return max(n, 0)
}

// value reads what v points to, as writer.value writes it.
func (r *reader) value(v any) {
	if r.err != nil {
		return
	}
	switch v := v.(type) {
	case *string:
		*v, r.err = directory.DecodeText(r.dec)
	case *uint64:
		*v, r.err = r.dec.DecodeUint64()
	case *bool:
		*v, r.err = r.dec.DecodeBool()
	case *directory.Statement:
		r.err = v.DecodeMsgpack(r.dec)
	case *[]string:
		*v = readList[string](r, 1)
	case *statements:
		*v = readList[directory.Statement](r, directory.MinStatement)
	case *stales:
		*v = readList[staleMessage](r, 4)
	case *copiesMessage:
		*v = readList[statements](r, 1)
	case record:
		fields := v.fields()
		if got := r.array(1); got != len(fields) && r.err == nil {
			r.err = fmt.Errorf("%d fields, want %d", got, len(fields))
		}
		for _, f := range fields {
			r.value(f)
		}
	default:
		r.err = fmt.Errorf("no form for a %T", v)
	}
}

// readList reads a list whose items take at least so many bytes each.
func readList[T any](r *reader, least int) []T {
	list := make([]T, r.array(least))
	for i := range list {
		r.value(&list[i])
	}
	return list
}

func encode(k kind, v any) ([]byte, error) {
	return put([]byte{messageVersion, byte(k)}, v)
}

// reply encodes an answer, which needs no head: the asker has its request.
func reply(v any) ([]byte, error) { return put(nil, v) }

func put(head []byte, v any) ([]byte, error) {
	if v == nil {
		return head, nil
	}
	b := bytes.NewBuffer(head)
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(b)
	w := writer{enc: enc}
	if w.value(v); w.err != nil {
		return nil, fmt.Errorf("dht: encode %T: %w", v, w.err)
	}
	return b.Bytes(), nil
}

func split(msg []byte) (kind, []byte, error) {
	if len(msg) < 2 || msg[0] != messageVersion {
		return 0, nil, fmt.Errorf("%w: it begins with %x", errBadMessage, msg[:min(len(msg), 2)])
	}
	return kind(msg[1]), msg[2:], nil
}

// decode reads all of body, which may be used again afterwards.
func decode(body []byte, v any) error {
	r := reader{rest: bytes.NewReader(body), dec: msgpack.GetDecoder()}
	defer msgpack.PutDecoder(r.dec)
	r.dec.Reset(r.rest)
	r.value(v)
	if r.err == nil && r.rest.Len() > 0 {
		r.err = fmt.Errorf("%d bytes are left over", r.rest.Len())
	}
	if r.err != nil {
		return fmt.Errorf("%w: %w", errBadMessage, r.err)
	}
	return nil
}
