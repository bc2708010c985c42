package mpi

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// A change of these bytes is a change of wireVersion.
var golden = map[string]struct {
	header header
	body   []byte
	hex    string
}{
	"call": {header{kind: kindCall, id: 0x0102030405060708, tag: firstTag, length: 3, timeout: time.Second}, []byte("abc"),
		"5dca010100000000080706050403020100040000" + "0300000000ca9a3b00000000" + "616263"},
	"long answer": {header{kind: kindAnswer, flags: flagData, id: 2, tag: firstTag + 2, length: 70_000}, nil,
		"5dca01020001000002000000000000000204000070110100" + "0000000000000000"},
	"check": {header{kind: kindCheck, id: 4, tag: firstTag + 6, length: readSize, timeout: 1}, make([]byte, readSize),
		"5dca010500000000040000000000000006040000200000000100000000000000" + strings.Repeat("00", readSize)},
	"status": {header{kind: kindStatus, status: statusStale, id: 3, tag: firstTag + 4}, nil,
		"5dca010401000000030000000000000004040000000000000000000000000000"},
}

func TestGolden(t *testing.T) {
	for name, g := range golden {
		b := make([]byte, headerSize)
		g.header.encode(b)
		b = append(b, g.body...)
		if got := hex.EncodeToString(b); got != g.hex {
			t.Errorf("%s: encoded\n%s, want\n%s", name, got, g.hex)
		}
		h, body, err := decode(b)
		if err != nil || h != g.header || !bytes.Equal(body, g.body) {
			t.Errorf("%s: decoded %+v %q, %v", name, h, body, err)
		}
	}
	b := make([]byte, readSize)
	src := fabric.Source{Region: 7, Offset: 1 << 40, Length: 4096, Generation: 0xFFEE}
	encodeSource(b, src)
	if got, want := hex.EncodeToString(b), "0700000000000000"+"0000000000010000"+"0010000000000000"+"eeff000000000000"; got != want {
		t.Errorf("source: %s, want %s", got, want)
	}
	if got, err := decodeSource(b); err != nil || got != src {
		t.Errorf("source: %+v, %v", got, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := make([]byte, headerSize, headerSize+1)
	header{kind: kindCall, id: 9, tag: firstTag}.encode(good)
	for name, c := range map[string]struct {
		at   int
		to   byte
		want error
	}{
		"magic": {0, 0, errMessage}, "version": {2, 2, errVersion}, "kind": {3, 9, errMessage}, "status": {4, 9, errMessage},
		"flags": {5, 2, errMessage}, "odd tag": {16, 1, errMessage}, "tag": {19, 0xFF, errMessage}, "length": {20, 1, errMessage},
		"timeout": {31, 0x80, errMessage},
	} {
		b := bytes.Clone(good)
		b[c.at] = c.to
		if h, _, err := decode(b); !errors.Is(err, c.want) || c.want == errVersion && h.id != 9 {
			t.Errorf("%s: %+v, error %v, want %v", name, h, err, c.want)
		}
	}
	for _, n := range []int{0, 1, headerSize - 1} {
		if _, _, err := decode(good[:n]); !errors.Is(err, errMessage) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, _, err := decode(append(good, 1)); !errors.Is(err, errMessage) {
		t.Errorf("a byte too many: %v", err)
	}
}

func TestTagsAreUsedLate(t *testing.T) {
	pool := newTags()
	first, _ := pool.take()
	kept, _ := pool.take()
	pool.give(first)
	for i := 2; i < tagPairs; i++ {
		tag, ok := pool.take()
		if !ok || tag == first || tag == kept {
			t.Fatalf("take %d: %d, %v", i, tag, ok)
		}
		pool.give(tag)
	}
	if tag, ok := pool.take(); !ok || tag != first {
		t.Errorf("after all others: %d, want %d", tag, first)
	}
	if tag, ok := pool.take(); !ok || tag != kept+2 {
		t.Errorf("a tag in use was handed out: %d", tag)
	}
}

func FuzzDecode(f *testing.F) {
	for _, g := range golden {
		b, _ := hex.DecodeString(g.hex)
		f.Add(b)
	}
	read := make([]byte, headerSize+readSize)
	header{kind: kindRead, id: 1, tag: firstTag, length: readSize, timeout: 1}.encode(read)
	encodeSource(read[headerSize:], fabric.Source{Length: 1})
	f.Add(read)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := decode(b)
		if err != nil {
			return
		}
		again := make([]byte, headerSize)
		h.encode(again)
		again[6], again[7] = b[6], b[7] // reserved: not looked at
		if !bytes.Equal(append(again, body...), b) {
			t.Errorf("decoded %+v from %x", h, b)
		}
		if h.kind == kindRead || h.kind == kindCheck {
			if s, err := decodeSource(body); err == nil && (s.Length < 0 || s.Length > fabric.MaxRead) {
				t.Errorf("source %+v", s)
			}
		}
	})
}

func TestErrorsTravel(t *testing.T) {
	for _, err := range []error{nil, fabric.ErrStale, fmt.Errorf("block 5: %w", fabric.ErrStale)} {
		s, text := statusOf(err)
		if got := s.err(3, text); !errors.Is(err, got) {
			t.Errorf("%v came as %v", err, got)
		}
	}
	s, text := statusOf(errors.New("no luck"))
	if re, ok := errors.AsType[*fabric.RemoteError](s.err(3, text)); !ok || *re != (fabric.RemoteError{Peer: 3, Text: "no luck"}) {
		t.Errorf("a handler's error came as %v", s.err(3, text))
	}
	if s, text := statusOf(errors.New(strings.Repeat("x", 2*inboxSize))); s != statusError || len(text) > maxInline {
		t.Errorf("a long error takes %d bytes, which do not fit into a control message", len(text))
	}
	for s, want := range map[status]error{statusTooLarge: fabric.ErrTooLarge, statusClosed: fabric.ErrUnreachable, statusRefused: fabric.ErrRefused} {
		if got := s.err(3, ""); !errors.Is(got, want) {
			t.Errorf("status %d came as %v, want %v", s, got, want)
		}
	}
}
