package memory

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// The golden bytes were made from docs/format.md §2 by a program that shares
// nothing with this one.
const (
	goldenBlock = "43424b31" + // magic
		"a3284fe4" + // CRC
		"0700000000000000" + // uid
		"0102030405060708090a0b0c0d0e0f1000000000000000000000000000000000" + // id
		"0020010000000000" + // offset
		"8813000000000000" + // size
		"efbeadde" + // CRC of the payload
		"05030201" // version

	goldenName = "434e4d31" + // magic
		"ffc289c6" + // CRC
		"0700000000000000" + // uid
		"8877665544332211" + // seq
		"05002a36fe9c9717" + // expires
		"03000000" + // depth
		"0300" + // flags
		"020004000300" + // bytes of namespace, key, parent
		"00000000" + // reserved
		"6e73" + "6b657900" + "706172" // namespace, key, parent

	goldenLayout = "434c5931" + // magic
		"86f8eb71" + // CRC
		"8877665544332211" + // seq
		"0040010000000000" + // bytes
		"00a0000000000000" + // of keys
		"10000000020000000800000050000000" + // tokens, layers, heads, elements
		"02000300" + // bytes of namespace, dtype
		"00000000" + // reserved
		"6e73" + "667038" // namespace, dtype

	goldenJob = "00000000" + "8877665544332211" // reserved, job

	goldenSuper = "4341534353484d31" + // magic
		"01000000" + // version
		"00100000" + // page
		"0000400000000000" + // file size
		"0010000000000000" + // tags
		"0020000000000000" + // data area
		"651900d0" + // CRC
		"00000000" // reserved
)

func someBlock() blockRecord {
	r := blockRecord{uid: 7, offset: 0x12000, info: block.Info{Size: 5000, CRC: 0xdeadbeef}, version: 0x01020305}
	for i := range 16 {
		r.info.ID[i] = byte(i + 1)
	}
	return r
}

func someName() block.Name {
	return block.Name{
		Namespace: "ns", Key: "key\x00", Parent: "par", Depth: 3, Prefix: true, Bound: true,
		Seq: 0x1122334455667788, Expires: time.Unix(1700000000, 5),
	}
}

var someLayout = block.Layout{Bytes: 81920, KeyBytes: 40960, Tokens: 16, Layers: 2, Heads: 8, HeadDim: 80, DType: "fp8"}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	p, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestGoldenBytes(t *testing.T) {
	super := make([]byte, 4096)
	geometryOf(4 << 20).writeSuper(super)
	storeJob(super, 0x1122334455667788)
	blockBytes := bytes.Repeat([]byte{0xff}, blockRecordSize) // a reused cell
	someBlock().write(blockBytes)
	n := someName()
	nameBytes := bytes.Repeat([]byte{0xff}, int(nameRecordLen(n)))
	writeName(nameBytes, 7, n)
	layoutBytes := bytes.Repeat([]byte{0xff}, int(layoutRecordLen("ns", someLayout)))
	writeLayout(layoutBytes, "ns", 0x1122334455667788, someLayout)
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"superblock": {super[:offReady], goldenSuper},
		"job":        {super[offMoving+4 : offJob+8], goldenJob},
		"block":      {blockBytes, goldenBlock},
		"name":       {nameBytes, goldenName},
		"layout":     {layoutBytes, goldenLayout},
	} {
		if !bytes.Equal(c.got, unhex(t, c.want)) {
			t.Errorf("%s:\n%x\nwant\n%s", name, c.got, c.want)
		}
	}
	if r, ok := readBlockRecord(unhex(t, goldenBlock)); !ok || r != someBlock() {
		t.Errorf("block record reads as %+v, %v", r, ok)
	}
	if uid, got, ok := readName(unhex(t, goldenName)); !ok || uid != 7 || !sameName(got, n) {
		t.Errorf("name record reads as %d, %+v, %v", uid, got, ok)
	}
	if ns, seq, l, ok := readLayout(unhex(t, goldenLayout)); !ok || ns != "ns" || seq != 0x1122334455667788 || l != someLayout {
		t.Errorf("layout record reads as %q, %d, %+v, %v", ns, seq, l, ok)
	}
	if err := geometryOf(4 << 20).checkSuper(super); err != nil {
		t.Error(err)
	}
}

func sameName(a, b block.Name) bool {
	same := a.Expires.Equal(b.Expires)
	a.Expires, b.Expires = time.Time{}, time.Time{}
	return same && a == b
}

// TestEveryBitOfARecordCounts flips each one.
func TestEveryBitOfARecordCounts(t *testing.T) {
	for name, c := range map[string]struct {
		golden string
		valid  func(p []byte) bool
	}{
		"block": {goldenBlock, func(p []byte) bool { _, ok := readBlockRecord(p); return ok }},
		"name":  {goldenName, func(p []byte) bool { _, _, ok := readName(p); return ok }},

		"layout": {goldenLayout, func(p []byte) bool { _, _, _, ok := readLayout(p); return ok }},
	} {
		p := unhex(t, c.golden)
		for bit := range 8 * len(p) {
			p[bit/8] ^= 1 << (bit % 8)
			if c.valid(p) {
				t.Errorf("%s: bit %d does not count", name, bit)
			}
			p[bit/8] ^= 1 << (bit % 8)
		}
		for n := range p {
			if c.valid(p[:n]) {
				t.Errorf("%s: %d bytes are enough", name, n)
			}
		}
	}
}

// valid makes the magic and the CRC of a record right, so that a fuzzer gets
// past them. end is where the record ends.
func valid(p []byte, magic uint32, end int) []byte {
	p = bytes.Clone(p)
	if end < 8 || end > len(p) {
		return p
	}
	le.PutUint32(p, magic)
	le.PutUint32(p[4:], block.CRC(p[8:end]))
	return p
}

func FuzzBlockRecord(f *testing.F) {
	f.Add(unhex(f, goldenBlock))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		for _, p := range [][]byte{p, valid(p, blockMagic, blockRecordSize)} {
			r, ok := readBlockRecord(p)
			if !ok {
				continue
			}
			if r.info.Size < 0 || r.info.Size > block.MaxSize || r.offset < 0 {
				t.Fatalf("accepted %+v", r)
			}
			again := make([]byte, blockRecordSize)
			r.write(again)
			if r2, ok := readBlockRecord(again); !ok || r2 != r {
				t.Fatalf("%+v reads back as %+v, %v", r, r2, ok)
			}
		}
	})
}

func FuzzLayout(f *testing.F) {
	f.Add(unhex(f, goldenLayout))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		end := 0
		if len(p) >= layoutRecordSize {
			end = layoutRecordSize + int(le.Uint16(p[48:])) + int(le.Uint16(p[50:]))
		}
		for _, p := range [][]byte{p, valid(p, layoutMagic, end)} {
			ns, seq, l, ok := readLayout(p)
			if !ok {
				continue
			}
			if err := l.Check(); err != nil || len(ns) > block.MaxKey {
				t.Fatalf("accepted %q, %+v: %v", ns, l, err)
			}
			again := make([]byte, layoutRecordLen(ns, l))
			writeLayout(again, ns, seq, l)
			if ns2, seq2, l2, ok := readLayout(again); !ok || ns2 != ns || seq2 != seq || l2 != l {
				t.Fatalf("%q, %d, %+v reads back as %q, %d, %+v, %v", ns, seq, l, ns2, seq2, l2, ok)
			}
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add(unhex(f, goldenName))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		end := 0
		if len(p) >= nameRecordSize {
			end = nameRecordSize + int(le.Uint16(p[38:])) + int(le.Uint16(p[40:])) + int(le.Uint16(p[42:]))
		}
		for _, p := range [][]byte{p, valid(p, nameMagic, end)} {
			uid, n, ok := readName(p)
			if !ok {
				continue
			}
			if n.Key == "" || max(len(n.Key), len(n.Namespace), len(n.Parent)) > block.MaxKey {
				t.Fatalf("accepted %+v", n)
			}
			again := make([]byte, nameRecordLen(n))
			writeName(again, uid, n)
			if uid2, n2, ok := readName(again); !ok || uid2 != uid || !sameName(n2, n) {
				t.Fatalf("%d, %+v reads back as %d, %+v, %v", uid, n, uid2, n2, ok)
			}
		}
	})
}
