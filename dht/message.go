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
)

// errBadMessage marks what no rank of this version sends.
var errBadMessage = errors.New("dht: bad message: all ranks of a job must run one version of cascaded")

// value is what a message carries.
type value interface {
	write(*writer)
	read(*reader)
}

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

type staleMessage struct {
	Namespace, Key string
	Before         uint64
}

type (
	statements []directory.Statement
	stales     []staleMessage

	// copiesMessage answers kindLocate: for each key its copies. Names come
	// without namespace and key, which the asker has.
	copiesMessage [][]directory.Statement

	oneStatement directory.Statement
)

func (m *keysMessage) write(w *writer) {
	w.array(2)
	w.text(m.Namespace)
	w.array(len(m.Keys))
	for _, k := range m.Keys {
		w.text(k)
	}
}

func (m *keysMessage) read(r *reader) {
	r.fields(2)
	m.Namespace = r.text()
	m.Keys = make([]string, r.array(1))
	for i := range m.Keys {
		m.Keys[i] = r.text()
	}
}

func (m *stampMessage) write(w *writer) {
	w.array(3)
	w.text(m.Namespace)
	w.text(m.Key)
	w.uint(m.Stamp)
}

func (m *stampMessage) read(r *reader) {
	r.fields(3)
	m.Namespace, m.Key, m.Stamp = r.text(), r.text(), r.uint()
}

func (m *clearMessage) write(w *writer) {
	w.array(2)
	w.text(m.Namespace)
	w.do(w.enc.EncodeBool(m.All))
}

func (m *clearMessage) read(r *reader) {
	r.fields(2)
	m.Namespace = r.text()
	if r.err == nil {
		m.All, r.err = r.dec.DecodeBool()
	}
}

func (m *stales) write(w *writer) {
	w.array(len(*m))
	for _, s := range *m {
		w.array(3)
		w.text(s.Namespace)
		w.text(s.Key)
		w.uint(s.Before)
	}
}

func (m *stales) read(r *reader) {
	*m = make(stales, r.array(4))
	for i := range *m {
		r.fields(3)
		(*m)[i] = staleMessage{r.text(), r.text(), r.uint()}
	}
}

func (m *statements) write(w *writer) {
	w.array(len(*m))
	for i := range *m {
		w.statement(&(*m)[i])
	}
}

func (m *statements) read(r *reader) {
	*m = make(statements, r.array(directory.MinStatement))
	for i := range *m {
		r.statement(&(*m)[i])
	}
}

func (m *copiesMessage) write(w *writer) {
	w.array(len(*m))
	for _, copies := range *m {
		(*statements)(&copies).write(w)
	}
}

func (m *copiesMessage) read(r *reader) {
	*m = make(copiesMessage, r.array(1))
	for i := range *m {
		(*statements)(&(*m)[i]).read(r)
	}
}

func (m *oneStatement) write(w *writer) { w.statement((*directory.Statement)(m)) }
func (m *oneStatement) read(r *reader)  { r.statement((*directory.Statement)(m)) }

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

func (w *writer) array(n int)                      { w.do(w.enc.EncodeArrayLen(n)) }
func (w *writer) text(s string)                    { w.do(w.enc.EncodeString(s)) }
func (w *writer) uint(n uint64)                    { w.do(w.enc.EncodeUint(n)) }
func (w *writer) statement(s *directory.Statement) { w.do(s.EncodeMsgpack(w.enc)) }

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

func (r *reader) fields(n int) {
	if got := r.array(1); got != n && r.err == nil {
		r.err = fmt.Errorf("%d fields, want %d", got, n)
	}
}

func (r *reader) text() (s string) {
	if r.err == nil {
		s, r.err = directory.DecodeText(r.dec)
	}
	return s
}

func (r *reader) uint() (n uint64) {
	if r.err == nil {
		n, r.err = r.dec.DecodeUint64()
	}
	return n
}

func (r *reader) statement(s *directory.Statement) {
	if r.err == nil {
		r.err = s.DecodeMsgpack(r.dec)
	}
}

func encode(k kind, v value) ([]byte, error) {
	return put([]byte{messageVersion, byte(k)}, v)
}

// reply encodes an answer, which needs no head: the asker has its request.
func reply(v value) ([]byte, error) { return put(nil, v) }

func put(head []byte, v value) ([]byte, error) {
	if v == nil {
		return head, nil
	}
	b := bytes.NewBuffer(head)
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(b)
	w := writer{enc: enc}
	if v.write(&w); w.err != nil {
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
func decode(body []byte, v value) error {
	r := reader{rest: bytes.NewReader(body), dec: msgpack.GetDecoder()}
	defer msgpack.PutDecoder(r.dec)
	r.dec.Reset(r.rest)
	v.read(&r)
	if r.err == nil && r.rest.Len() > 0 {
		r.err = fmt.Errorf("%d bytes are left over", r.rest.Len())
	}
	if r.err != nil {
		return fmt.Errorf("%w: %w", errBadMessage, r.err)
	}
	return nil
}
