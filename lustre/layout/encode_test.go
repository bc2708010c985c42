package layout

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// requests are option lines with the bytes that lfs 2.17 passes to the kernel
// for them (taken down by strace; the object id of the MDT's inode, which lfs
// leaves uninitialised, is zero here).
var requests = map[string]struct{ line, bytes string }{
	"plain": {"-c 2 -S 8m", `
		d00bd10b 01000000 0000000000000000 0000000000000000 00008000 0200 ffff`},
	"pool": {"-p flash", `
		d00bd30b 01000000 0000000000000000 0000000000000000 00000000 0000 ffff
		666c6173680000000000000000000000`},
	"all OSTs": {"-c -1", `
		d00bd10b 01000000 0000000000000000 0000000000000000 00000000 ffff ffff`},
	"overstriped": {"-C -2", `
		d00bd10b 01020000 0000000000000000 0000000000000000 00000000 feff ffff`},
	"components": {"-E 64M -c 1 -E -1 -c 2 -S 8m -p flash", `
		d00bd60b d0000000 00000000 0000 0200 0000 00 00 00000000 0000000000000000
		00000000 00000000 0000000000000000 0000000400000000 80000000 20000000 00000000 000000000000 0000 00000000
		00000000 00000000 0000000400000000 ffffffffffffffff a0000000 30000000 00000000 000000000000 0000 00000000
		d00bd10b 01000000 0000000000000000 0000000000000000 00000000 0100 ffff
		d00bd30b 01000000 0000000000000000 0000000000000000 00008000 0200 ffff
		666c6173680000000000000000000000`},
	"on the MDT": {"-E 1M -L mdt -E -1 -c 2 -S 8m", `
		d00bd60b c0000000 00000000 0000 0200 0000 00 00 00000000 0000000000000000
		00000000 00000000 0000000000000000 0000100000000000 80000000 20000000 00000000 000000000000 0000 00000000
		00000000 00000000 0000100000000000 ffffffffffffffff a0000000 20000000 00000000 000000000000 0000 00000000
		d00bd10b 00010000 0000000000000000 0000000000000000 00001000 0000 ffff
		d00bd10b 01000000 0000000000000000 0000000000000000 00008000 0200 ffff`},
}

func TestRequestsAreThoseOfLfs(t *testing.T) {
	for name, tc := range requests {
		t.Run(name, func(t *testing.T) {
			l, err := Parse(tc.line)
			if err != nil {
				t.Fatal(err)
			}
			got, err := l.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if want := unhex(t, tc.bytes); !bytes.Equal(got, want) {
				t.Errorf("%s:\n got %x\nwant %x", tc.line, got, want)
			}
			g, err := Decode(got)
			if err != nil {
				t.Fatal(err)
			}
			if back := g.Layout(); !back.Equal(l) {
				t.Errorf("%s decodes to %+v", tc.line, back)
			}
		})
	}
}

// answers are bytes of lustre.lov as Lustre 2.17 gave them.
var answers = map[string]struct {
	bytes, text string
	check       func(t *testing.T, g Granted)
}{
	"a file in a pool": {`
		d00bd30b 01000000 0700000000000000 d10b000002000000 00004000 0100 ffff
		666c6173680000000000000000000000
		0004008002000000 2400000000000000 00000000 01000000`,
		"-c 1 -S 4M -p flash on OST 1",
		func(t *testing.T, g Granted) {
			if o := g.Parts[0].Objects; len(o) != 1 || o[0] != (Object{OST: 1, Seq: 0x280000400, ID: 0x24}) {
				t.Errorf("objects %+v", o)
			}
		}},
	"a file of Lustre 1.8": {`
		d00bd10b 01000000 0700000000000000 0000000000000000 00001000 0100 0000
		2a00000000000000 0000000000000000 00000000 03000000`,
		"-c 1 -S 1M on OST 3",
		func(t *testing.T, g Granted) {
			if o := g.Parts[0].Objects; len(o) != 1 || o[0] != (Object{OST: 3, ID: 42}) {
				t.Errorf("objects %+v", o)
			}
		}},
	"a directory's default": {`
		d00bd10b 01000000 0000000000000000 0000000000000000 00008000 0200 ffff`,
		"-c 2 -S 8M", nil},
	"a directory's default with components": {`
		d00bd60b c0000000 00000000 0000 0200 0000 00 00 00000000 0000000000000000
		00000000 00000000 0000000000000000 0000000400000000 80000000 20000000 00000000 000000000000 0000 00000000
		00000000 00000000 0000000400000000 ffffffffffffffff a0000000 20000000 00000000 000000000000 0000 00000000
		d00bd10b 01000000 51fb010000000000 0000000000000000 00000000 0100 ffff
		d00bd10b 01000000 31fb010000000000 0000000000000000 00000000 ffff ffff`,
		"-E 64M -c 1, -E eof -c -1", nil},
	"a file partly on the MDT": {`
		d00bd60b c0000000 02000000 0000 0200 0000 00 00 00000000 0000000000000000
		01000000 10000000 0000000000000000 0000100000000000 80000000 20000000 00000000 000000000000 0000 00000000
		02000000 00000000 0000100000000000 ffffffffffffffff a0000000 20000000 00000000 000000000000 0000 00000000
		d00bd10b 00010000 0000000000000000 0000000000000000 00001000 0000 ffff
		d00bd10b 01000000 0000000000000000 0000000000000000 00004000 0200 ffff`,
		"-E 1M -L mdt, -E eof -c 2 -S 4M not placed yet",
		func(t *testing.T, g Granted) {
			if g.Generation != 2 || g.Mirrors != 1 || !g.Parts[0].Initialized() || g.Parts[1].Initialized() || g.Parts[1].Start != 1<<20 {
				t.Errorf("got %+v", g)
			}
			if a, b := g.Parts[0].flagNames(), g.Parts[1].flagNames(); a != "init" || b != "0" {
				t.Errorf("flags %q and %q", a, b)
			}
		}},
	"a file with a pool in one component": {`
		d00bd60b e8000000 02000000 0000 0200 0000 00 00 00000000 0000000000000000
		01000000 10000000 0000000000000000 0000000400000000 80000000 48000000 00000000 000000000000 0000 00000000
		02000000 00000000 0000000400000000 ffffffffffffffff c8000000 20000000 00000000 000000000000 0000 00000000
		d00bd30b 01000000 0000000000000000 0000000000000000 00004000 0100 ffff
		666c6173680000000000000000000000
		0004008002000000 2500000000000000 00000000 01000000
		d00bd10b 01000000 0000000000000000 0000000000000000 00004000 ffff ffff`,
		"-E 64M -c 1 -S 4M -p flash on OST 1, -E eof -c -1 -S 4M not placed yet",
		func(t *testing.T, g Granted) {
			if osts := g.OSTs(); len(osts) != 1 || osts[0] != 1 {
				t.Errorf("OSTs %v", osts)
			}
		}},
}

func TestAnswersOfLustre(t *testing.T) {
	for name, tc := range answers {
		t.Run(name, func(t *testing.T) {
			g, err := Decode(unhex(t, tc.bytes))
			if err != nil {
				t.Fatal(err)
			}
			if g.String() != tc.text {
				t.Errorf("%q, want %q", g, tc.text)
			}
			if tc.check != nil {
				tc.check(t, g)
			}
		})
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	good := unhex(t, requests["components"].bytes)
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":             func(b []byte) []byte { return nil },
		"other magic":       func(b []byte) []byte { b[0]++; return b },
		"foreign":           func(b []byte) []byte { le.PutUint32(b, magicForeign); return b },
		"cut":               func(b []byte) []byte { return b[:len(b)-1] },
		"cut header":        func(b []byte) []byte { return b[:20] },
		"no components":     func(b []byte) []byte { le.PutUint16(b[14:], 0); return b },
		"too many":          func(b []byte) []byte { le.PutUint16(b[14:], 65535); return b },
		"component outside": func(b []byte) []byte { le.PutUint32(b[32+24:], 1<<31); return b },
		"component short":   func(b []byte) []byte { le.PutUint32(b[32+28:], 31); return b },
		"pool short":        func(b []byte) []byte { le.PutUint32(b[80+28:], 40); return b },
		"half an object":    func(b []byte) []byte { le.PutUint32(b[32+28:], 32+12); return b },
		"nested":            func(b []byte) []byte { le.PutUint32(b[128:], magicComp); return b },
		"huge start":        func(b []byte) []byte { le.PutUint64(b[32+8:], 1<<63); return b },
		"huge end":          func(b []byte) []byte { le.PutUint64(b[32+16:], 1<<63); return b },
	} {
		t.Run(name, func(t *testing.T) {
			if g, err := Decode(damage(bytes.Clone(good))); !errors.Is(err, ErrBadLayout) {
				t.Errorf("got %+v and %v", g, err)
			}
		})
	}
}

func TestEncodeRefusesWhatCannotBe(t *testing.T) {
	if _, err := (Layout{}).Encode(); !errors.Is(err, ErrNoLayout) {
		t.Errorf("nothing asked for: %v", err)
	}
	if _, err := Plain(1, 1000, "").Encode(); !errors.Is(err, ErrOption) {
		t.Errorf("odd size: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range requests {
		b, err := hex.DecodeString(strings.Join(strings.Fields(r.bytes), ""))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, a := range answers {
		b, err := hex.DecodeString(strings.Join(strings.Fields(a.bytes), ""))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrBadLayout) {
				t.Fatalf("%v", err)
			}
			return
		}
		_, _ = g.String(), g.OSTs()
		l := g.Layout()
		again, err := l.Encode()
		if err != nil {
			return // granted once, but nothing that lfs would ask for
		}
		back, err := Decode(again)
		if err != nil || !back.Layout().Equal(l) {
			t.Fatalf("%+v became %+v: %v", l, back.Layout(), err)
		}
	})
}
