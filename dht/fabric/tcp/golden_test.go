package tcp

import (
	"encoding/hex"
	"strings"
	"testing"

	"cascadekv/dht/fabric"
)

// unhex drops white space.
func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenFrames(t *testing.T) {
	src := fabric.Source{Region: 0x01020304, Offset: 0x1122334455667788, Length: 0x10000, Generation: 0xAABBCCDDEEFF0011}
	read := encodeRead(src, 1_000_000_000)
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"call":    {header{kind: kindCall, id: 0x0807060504030201, number: 2_000_000_000}.frame([]byte("hi")), "01 000000 02000000 0102030405060708 0094357700000000 6869"},
		"answer":  {header{kind: kindAnswer, id: 7}.frame([]byte("ok")), "02 000000 02000000 0700000000000000 0000000000000000 6f6b"},
		"failure": {header{kind: kindFailure, id: 7}.frame([]byte("no")), "03 000000 02000000 0700000000000000 0000000000000000 6e6f"},
		"cancel":  {header{kind: kindCancel, id: 7}.frame(nil), "04 000000 00000000 0700000000000000 0000000000000000"},
		"read": {read[:], `05 000000 20000000 0000000000000000 00ca9a3b00000000
			04030201 00000000 8877665544332211 0000010000000000 1100ffeeddccbbaa`},
		"payload": {header{kind: kindPayload, number: 4 << 30}.frame(nil), "06 000000 00000000 0000000000000000 0000000001000000"},
		"stale":   {header{kind: kindStale}.frame(nil), "07 000000 00000000 0000000000000000 0000000000000000"},
	} {
		want := unhex(t, c.want)
		if string(c.got) != string(want) {
			t.Errorf("%s: %x, want %x", name, c.got, want)
		}
		h, err := decode((*[headerSize]byte)(want))
		if err != nil || h.length != len(want)-headerSize {
			t.Errorf("%s: decoded as %+v, error %v", name, h, err)
		}
	}
	got, err := decodeRead((*[readSize]byte)(read[headerSize:]))
	if err != nil || got != src {
		t.Errorf("the read is decoded as %+v, error %v", got, err)
	}
}

func TestBrokenFrames(t *testing.T) {
	for name, text := range map[string]string{
		"kind 0":             "00 000000 00000000 0000000000000000 0000000000000000",
		"kind 8":             "08 000000 00000000 0000000000000000 0000000000000000",
		"reserved":           "01 000100 00000000 0100000000000000 0000000000000000",
		"long call":          "01 000000 01001000 0100000000000000 0000000000000000",
		"longest call":       "01 000000 ffffffff 0100000000000000 0000000000000000",
		"long answer":        "02 000000 01001000 0100000000000000 0000000000000000",
		"numbered answer":    "02 000000 00000000 0100000000000000 0100000000000000",
		"long failure":       "03 000000 01100000 0100000000000000 0000000000000000",
		"cancel with a body": "04 000000 01000000 0100000000000000 0000000000000000",
		"short read":         "05 000000 1f000000 0000000000000000 0100000000000000",
		"named read":         "05 000000 20000000 0100000000000000 0100000000000000",
		"long payload":       "06 000000 00000000 0000000000000000 0100000001000000",
		"payload with body":  "06 000000 01000000 0000000000000000 0100000000000000",
		"numbered stale":     "07 000000 00000000 0000000000000000 0100000000000000",
	} {
		if h, err := decode((*[headerSize]byte)(unhex(t, text))); err == nil {
			t.Errorf("%s: decoded as %+v", name, h)
		}
	}
	for name, text := range map[string]string{
		"reserved": "00000000 01000000 0000000000000000 0100000000000000 0000000000000000",
		"negative": "00000000 00000000 0000000000000000 ffffffffffffffff 0000000000000000",
		"long":     "00000000 00000000 0000000000000000 0100000001000000 0000000000000000",
	} {
		if src, err := decodeRead((*[readSize]byte)(unhex(t, text))); err == nil {
			t.Errorf("source, %s: decoded as %+v", name, src)
		}
	}
}

// golden is an identity whose codes are known.
func golden() *identity {
	o := Options{Self: 2, Incarnation: 0x1111, Job: "job 7", Secret: []byte("0123456789abcdef"), Placement: 5}
	return newIdentity(&o)
}

// The codes were computed apart from this package, with Python's hmac.
func TestGoldenHandshake(t *testing.T) {
	g := greeting{version: 2, purpose: forPayloads, authority: true, from: 2, to: 3, placement: 5, incarnation: 0x1111, job: "job 7"}
	for i := range g.nonce {
		g.nonce[i] = byte(i)
	}
	opener := g.encode()
	want := unhex(t, `4341534341444546 0200 02 01 02000000 03000000 05000000 1111000000000000
		000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
		05 6a6f622037`+strings.Repeat("00", 58))
	if string(opener[:]) != string(want) {
		t.Errorf("greeting %x, want %x", opener, want)
	}
	back, err := decodeGreeting(&opener)
	if err != nil || back != g {
		t.Errorf("decoded as %+v, error %v", back, err)
	}
	g.from, g.to, g.nonce = 3, 2, [nonceSize]byte{0xFF}
	accepter := g.encode()
	for role, want := range map[string]string{
		roleAccepter: "e73c09de41bc68ba204557a9da95d34744413aa573ab46272f755296fcd811f2",
		roleOpener:   "0993179fb72829e51ff4fee5549addd7ae88804488f9b442d119c77871495414",
	} {
		code := golden().code(role, &opener, &accepter)
		if got := hex.EncodeToString(code[:]); got != want {
			t.Errorf("code of the %s: %s, want %s", role, got, want)
		}
	}
}
